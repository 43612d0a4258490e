import json

import pytest

from tests.prune.conftest import PLANTED
from tests.prune.recipes import make_recipe
from workbench.prune import comparison
from workbench.prune.comparison import compare_searches


@pytest.fixture(scope="module")
def compared(corpus_folder, planted_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    recipe = make_recipe(drop_layers=[2], protect=[], trials=6, importance="span_cosine")
    rows = compare_searches(recipe, corpus_folder, planted_folder.parent, folder, seeds=2)
    return folder, {row.method: row for row in rows}


def test_every_method_chooses_by_every_seed(compared):
    _, rows = compared
    assert list(rows) == ["one-shot", "random", "greedy", "search"]
    assert all(len(row.sets) == 2 for row in rows.values())
    assert all(set(dropped) <= set(PLANTED) for dropped in rows["search"].sets)
    assert rows["search"].retained.value == 1.0


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


def test_blocks_that_choose_do_not_judge(corpus_folder, planted_folder, tmp_path, monkeypatch):
    seen = []
    build = comparison.ScorerSettings.build
    monkeypatch.setattr(comparison.ScorerSettings, "build", lambda settings: seen.append(settings) or build(settings))
    recipe = make_recipe(drop_layers=[1], protect=[], trials=2)
    compare_searches(recipe, corpus_folder, planted_folder.parent, tmp_path, seeds=1)
    judge, own = seen
    assert set(range(*judge.samples)).isdisjoint(range(*own.samples))
