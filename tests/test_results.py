"""The documentation's numbers: what is recorded and rendered, and that committed pages come from committed JSON."""

import json
import shutil
from pathlib import Path

import pytest

from workbench import results
from workbench.errors import WorkbenchError
from workbench.recipe import load_recipe
from workbench.result_tables import render_suites


def test_committed_pages_come_out_of_committed_measurements(tmp_path):
    measurements = tmp_path / "measurements"
    shutil.copytree(results.MEASUREMENTS, measurements)
    readme = tmp_path / "README.md"
    shutil.copy(results.README, readme)
    results.write_results(measurements, tmp_path / "results.md", readme)
    assert (tmp_path / "results.md").read_text() == results.PAGE.read_text()
    assert readme.read_text() == results.README.read_text()


def test_figures_of_the_page_exist():
    for line in results.PAGE.read_text().splitlines():
        if line.startswith("!["):
            assert (results.PAGE.parent / line.split("(")[1].rstrip(")")).is_file(), line


def test_a_run_is_recorded_without_its_places(tmp_path):
    recipe = load_recipe("quickstart", ["--runs", str(tmp_path / "runs")])
    with pytest.raises(WorkbenchError, match="run the recipe first"):
        results.record(recipe, tmp_path / "measurements")
    recipe.run_folder.mkdir(parents=True)
    (recipe.run_folder / "validation.json").write_text(
        json.dumps({"drafter": str(tmp_path / "a" / "b"), "x": [1, "y/z", "sqlite:////a/b.db"]})
    )
    folder = results.record(recipe, tmp_path / "measurements")
    assert json.loads((folder / "validation.json").read_text()) == {"drafter": "b", "x": [1, "y/z", "sqlite:///b.db"]}
    assert sorted(path.name for path in folder.iterdir()) == ["validation.json"]


def test_only_the_marked_section_changes(tmp_path):
    readme = tmp_path / "README.md"
    begin, end = results.SECTION
    readme.write_text(f"above\n{begin}\nold\n{end}\nbelow\n")
    assert results.replace_section(readme, "new") == f"above\n{begin}\n\nnew\n\n{end}\nbelow\n"
    readme.write_text("no marks")
    with pytest.raises(WorkbenchError, match="lacks the lines"):
        results.replace_section(readme, "new")


def test_nothing_recorded_is_said(tmp_path):
    with pytest.raises(WorkbenchError, match="make record RECIPE="):
        results.write_results(tmp_path, tmp_path / "results.md", Path("README.md"))


def test_suites_are_averaged():
    cells = {
        "one": {"speedup": {"median": 1.5}, "acceptance_length": {"mean": 2.0}},
        "two": {"speedup": {"median": 2.5}, "acceptance_length": {"mean": 3.0}},
    }
    table = render_suites(
        {"methods": {"asynchronous": cells, "transformers": {n: {"speedup": {"median": 1.0}} for n in cells}}}
    )
    assert table.splitlines()[0] == "| method | one | two | mean |"
    assert table.splitlines()[2] == "| asynchronous | 1.50x (2.00) | 2.50x (3.00) | 2.00x (2.50) |"
    assert table.splitlines()[3] == "| transformers | 1.00x (1.00) | 1.00x (1.00) | 1.00x (1.00) |"
