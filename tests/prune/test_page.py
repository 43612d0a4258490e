from html.parser import HTMLParser

from workbench.prune.page import render_page

ESTIMATE = {"mean": 0.97, "ci95": [0.95, 0.99]}


def make_result(**changes):
    trial = {"number": 0, "dropped": [2], "outcome": "complete", "cheap": [0.9, 0.8, 1.0], "precise": [0.91, 0.9, 0.92]}
    point = {"acceptance_length": 5.0, "retained": 1.0, "packed_s": 0.01, "draft_s": 0.005}
    point |= {"predicted_speedup": 2.0, "width": 1.0}
    candidate = {
        "acceptance_length": 5.2,
        "heal_steps": 10,
        "num_prompts": 48,
        "hit_share": 0.9,
        "retained": ESTIMATE,
        "retained_same_training": None,
        "speedup": {"median": 2.4, "ci95": [2.2, 2.5]},
        "speed_gain": {"median": 1.2, "ci95": [1.1, 1.3]},
    }
    healed = point | {"dropped": [2], "state": "healed", "is_chosen": True}
    result = {
        "recipe": "tiny <b>",
        "seconds": {"studies": 30.0, "total": 90.0},
        "workers": 2,
        "unpruned": {"kept_layers": [0, 2, 4], "num_blocks": 2000},
        "studies": [
            {
                "study": "tiny-drop-1-abcd",
                "storage": "sqlite:///studies.db",
                "num_dropped": 1,
                "dropped_before": [],
                "width": 0.75,
                "importance": {"block_influence": {"2": 0.5, "4": 0.25}, "leave_one_out": {"2": -0.01, "4": 0.0}},
                "best": [{"dropped": [2], "trial": 0, "retained": ESTIMATE}],
                "trials": [
                    trial | {"repeats": None},
                    trial | {"number": 1, "repeats": 0, "cheap": None, "precise": None},
                ],
            }
        ],
        "pass_times": [{"width": 1.0, "num_dropped": 0, "verify_s": 0.0125}],
        "points": [point | {"dropped": [], "state": "unpruned", "is_chosen": False}, healed],
        "front": [healed],
        "results": [candidate | {"name": "unpruned", "dropped": []}, candidate | {"name": "drop-2", "dropped": [2]}],
        "chosen": {"name": "drop-2", "dropped": [2], "reason": "it is the fastest"},
    }
    return result | changes


class Rows(HTMLParser):
    def __init__(self, page: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.inside = True
            self.rows.append([])

    def handle_endtag(self, tag):
        self.inside &= tag != "tr"

    def handle_data(self, data):
        if self.inside and data.strip():
            self.rows[-1].append(data.strip())


def test_the_page_shows_the_winner_the_layers_and_the_history():
    page = render_page(make_result())
    rows = Rows(page).rows
    assert next(row for row in rows if row[0] == "drop-2")[:9] == [
        "drop-2",
        "2",
        "10",
        "5.20",
        "97.0%",
        "95.0% to 99.0%",
        "not measured",
        "90%",
        "2.40",
    ]
    assert ["0", "protected"] in rows
    assert ["2", "dropped", "0.500", "-0.010"] in rows
    assert ["4", "kept", "0.250", "0.000"] in rows
    assert ["0", "2", "90.0%", "80.0% to 100.0%", "91.0%", "90.0% to 92.0%"] in rows
    assert ["2", "healed", "5.00", "100.0%", "10.0", "2.00"] in rows
    assert "it is the fastest" in page
    assert "a verification takes 12.5 ms" in page
    assert "3 layers before; 1.5 minutes with 2 workers (studies 30 s)" in page
    assert "Which 1 to drop, feed-forward width 0.75: 2" in page


def test_repeats_are_no_part_of_the_history_and_names_are_escaped():
    page = render_page(make_result())
    assert not any(row[:2] == ["1", "2"] for row in Rows(page).rows)
    assert "<b>" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_promoted_set_has_both_estimates_in_one_row():
    result = make_result()
    first, second = result["studies"][0]["trials"]
    promotion = second | {"precise": [0.93, 0.92, 0.94]}
    result["studies"][0]["trials"] = [first | {"precise": None, "outcome": "pruned"}, promotion]
    rows = Rows(render_page(result)).rows
    assert ["0", "2", "90.0%", "80.0% to 100.0%", "93.0%", "92.0% to 94.0%"] in rows
