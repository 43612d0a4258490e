import copy
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from workbench.distill.curve import forecast
from workbench.errors import WorkbenchError
from workbench.validate.report import write_report
from workbench.validate.table import value_of

SEARCH = {
    "points": [
        {
            "dropped": dropped,
            "state": state,
            "acceptance_length": length,
            "retained": length / 6.4,
            "packed_s": packed_s,
        }
        | {"is_chosen": state == "healed"}
        for dropped, state, length, packed_s in (
            ([], "unpruned", 6.4, 0.0105),
            ([2], "before healing", 5.1, 0.0095),
            ([2], "healed", 6.37, 0.0095),
        )
    ],
    "chosen": {"name": "without 2", "dropped": [2], "kept_layers": [0, 1, 3], "reason": "Fastest that keeps 99 %."},
}
SEARCH["front"] = [SEARCH["points"][2], SEARCH["points"][0]]
DISTILLATION = {
    "steps": 400,
    "seconds": 240.0,
    "tokens_per_second": 3000.0,
    "curve": [{"seconds": 60.0 * i, "acceptance_anchored": 2.0 + i, "acceptance_masked": 1.5 + i} for i in range(1, 5)],
}


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.headings, self._open = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data):
        if self._open in ("h1", "h2", "h3") and data.strip():
            self.headings.append(data.strip())


@pytest.fixture
def validation(validated):
    return validated[2]


def write(folder, validation, search=SEARCH, distillation=DISTILLATION):
    for name, content in (
        ("validation.json", validation),
        ("search.json", search),
        ("distill.json", distillation),
    ):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    page = write_report(folder)
    return page.read_text(), (folder / "report.md").read_text()


def test_the_page_stands_alone_and_shows_everything(tmp_path, validation):
    html, _ = write(tmp_path, validation)
    page = Page(html)
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert not re.search(r"""(?:src|href)=["'](?!#)|url\((?!#)|@import""", html)
    assert {
        "Speedup over plain decoding",
        "Where a round's time goes",
        "Acceptance by position",
        "How the next block was found",
        "Pruning front",
        "Learning curve",
        "Configuration and machine",
    } <= set(page.headings)
    assert tags.count("svg") == 6


def test_figures_are_well_formed_and_share_no_id(tmp_path, validation):
    html, _ = write(tmp_path, validation)
    figures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    ids = [element.get("id") for figure in figures for element in ElementTree.fromstring(figure).iter()]
    ids = [name for name in ids if name]
    assert len(ids) == len(set(ids))
    references = {one or other for one, other in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html)}
    assert references
    assert references <= set(ids)


def test_both_forms_show_the_numbers_of_the_result(tmp_path, validation):
    html, markdown = write(tmp_path, validation)
    for suites in validation["methods"].values():
        for key, digits in (("tokens_per_second", 1), ("speedup", 2)):
            value = f"{value_of(suites['words'][key]):.{digits}f}"
            assert value in html
            assert value in markdown


def test_tables_in_markdown_have_as_many_cells_as_their_head(tmp_path, validation):
    _, markdown = write(tmp_path, validation)
    tables = re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE)
    assert len(tables) >= 7
    for table in tables:
        assert len({line.rstrip().count("|") for line in table.splitlines()}) == 1, table


def test_what_is_not_there_is_left_out(tmp_path, validation):
    html, markdown = write(tmp_path, validation, search=None, distillation=None)
    assert "Pruning" not in html + markdown
    assert "Learning curve" not in html
    assert "How it was made" not in html


def test_a_fitted_curve_says_what_more_training_would_bring(tmp_path, validation):
    curve = [
        {"seconds": 30.0 * i, "acceptance_anchored": 7 - 4 / i, "acceptance_masked": 6 - 4 / i} for i in range(1, 9)
    ]
    forecasts = [forecast(curve, f"acceptance_{name}", 9) for name in ("anchored", "masked")]
    html, markdown = write(tmp_path, validation, distillation={**DISTILLATION, "curve": curve, "forecasts": forecasts})
    for text in (html, markdown):
        assert re.search(r"continued: 6\.\d\d \(.*\) after 8 minutes and 6\.\d\d \(.*\) after 16 minutes", text)


def test_a_validation_that_is_not_lossless_says_so(tmp_path, validation):
    broken = copy.deepcopy(validation)
    cell = broken["methods"]["asynchronous"]["words"]
    broken["lossless"] = cell["lossless"] = False
    first = {"status": "different", "kind": "loses a token", "position": 3, "message": "position 3: <b>"}
    cell["losslessness"] |= {"different": 1, "divergences": {"loses a token": {"num_outputs": 1, "first": first}}}
    html, markdown = write(tmp_path, broken)
    assert "Not lossless." in html
    assert "position 3: &lt;b&gt;" in html
    assert "loses a token" in markdown


def test_a_folder_without_a_validation(tmp_path):
    with pytest.raises(WorkbenchError, match=r"validation\.json does not exist"):
        write_report(tmp_path)
