import json

import pytest

from tests.prune.conftest import PLANTED
from tests.prune.recipes import make_recipe
from workbench.prune import comparison, scoring
from workbench.prune.comparison import compare_searches

RECIPE = make_recipe(drop_layers=[2], protect=[], trials=6, importance="span_cosine")


@pytest.fixture(scope="module")
def compared(corpus_folder, planted_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    rows = compare_searches(RECIPE, corpus_folder, planted_folder.parent, folder, seeds=2)
    return folder, {row.method: row for row in rows}


def test_every_method_chooses_by_every_seed(compared):
    _, rows = compared
    assert list(rows) == ["one-shot", "random", "greedy", "search"]
    assert all(len(row.choices) == 2 for row in rows.values())
    assert all(set(choice.dropped) <= set(PLANTED) for choice in rows["search"].choices)
    assert rows["search"].retained.value == 1.0
    looked_at = [[choice.evaluations for choice in rows[method].choices] for method in ("random", "search")]
    assert looked_at[0] == looked_at[1]


def test_one_shot_is_what_gains_are_measured_from(compared):
    _, rows = compared
    assert (rows["one-shot"].gain.value, rows["one-shot"].gain.low, rows["one-shot"].gain.high) == (0.0, 0.0, 0.0)
    for row in rows.values():
        expected = row.retained.value - rows["one-shot"].retained.value
        assert row.gain.value == pytest.approx(expected, abs=1e-9)


def test_the_table_holds_the_numbers(compared):
    folder, rows = compared
    table = (folder / "comparison.md").read_text()
    assert table.count("| 2 |") == len(rows)
    assert "| 2 | search |" in table
    values = json.loads((folder / "comparison.json").read_text())
    assert [row["method"] for row in values["rows"]] == list(rows)


def test_an_ended_comparison_goes_on_with_the_other_seeds(
    compared, corpus_folder, planted_folder, tmp_path, monkeypatch
):
    whole, _ = compared
    arguments = (RECIPE, corpus_folder, planted_folder.parent, tmp_path)
    (row, *_) = compare_searches(*arguments, seeds=2, max_minutes=0)
    assert len(row.choices) == 1
    scored = []
    score = scoring.score_blocks
    monkeypatch.setattr(scoring, "score_blocks", lambda *values: scored.append(values) or score(*values))
    compare_searches(*arguments, seeds=2)
    assert (tmp_path / "comparison.json").read_text() == (whole / "comparison.json").read_text()
    num_scored = len(scored)
    compare_searches(*arguments, seeds=2)
    assert num_scored > 0
    assert len(scored) == num_scored


def test_blocks_that_choose_do_not_judge(corpus_folder, planted_folder, tmp_path, monkeypatch):
    seen = []
    build = comparison.ScorerSettings.build
    monkeypatch.setattr(comparison.ScorerSettings, "build", lambda settings: seen.append(settings) or build(settings))
    recipe = make_recipe(drop_layers=[1], protect=[], trials=2)
    compare_searches(recipe, corpus_folder, planted_folder.parent, tmp_path, seeds=1)
    own, judge = seen
    assert set(range(*judge.samples)).isdisjoint(range(*own.samples))
