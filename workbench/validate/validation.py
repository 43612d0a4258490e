"""The validation of a candidate: measure every method, judge every output, write one JSON file, show a table."""

from pathlib import Path
from typing import Any

from workbench.console import console
from workbench.errors import WorkbenchError
from workbench.files import write_json
from workbench.recipe import Recipe
from workbench.targets import load_target
from workbench.validate.bench import Bench
from workbench.validate.methods import select_methods
from workbench.validate.result import build_result
from workbench.validate.state import MeasurementLog
from workbench.validate.suites import load_suites
from workbench.validate.table import render_table

VALIDATION_FILE = "validation.json"


def validate(recipe: Recipe, drafters: dict[str, Path], folder: Path) -> dict[str, Any]:
    """Validates drafters against plain decoding and writes `folder/validation.json`.

    Continues from the measurements that an interrupted validation of the same inputs left in `folder`.

    Args:
        recipe: Target, decoding options, suites and protocol.
        drafters: Drafter folders by name; the first is the candidate, the others are its yardsticks.
        folder: Where results and the state of an unfinished validation go.

    Raises:
        WorkbenchError: an output differs from plain decoding and is no tie; the results are written nevertheless.
    """
    target = load_target(recipe.target)
    suites = load_suites(recipe.validate.suites, target, recipe.seed)
    methods = select_methods(recipe.decode, list(drafters), target.model.device)
    bench = Bench(recipe, target, drafters, suites, methods)
    with MeasurementLog(folder, bench.subject()) as log:
        idle_load = bench.measure(log)
        verdicts = {job: bench.judge(log.measurements, job) for job in bench.jobs()}
        result = build_result(bench, log.measurements, verdicts, idle_load, log.num_resumed)
        write_json(folder / VALIDATION_FILE, result)
        console.print(render_table(result), soft_wrap=False)
        for warning in result["warnings"]:
            console.print(f"[yellow]warning:[/yellow] {warning}")
        if not result["lossless"]:
            evidence = log.set_aside()
            raise WorkbenchError(f"validation failed: {first_bug(result)}; all outputs are in {evidence}")
    return result


def first_bug(result: dict[str, Any]) -> str:
    """One sentence about the first divergence of a result that is not lossless."""
    for method, suites in result["methods"].items():
        for suite, cell in suites.items():
            for kind, entry in cell["losslessness"].get("divergences", {}).items():
                if cell["lossless"] is False and entry["first"]["status"] == "different":
                    count = entry["num_outputs"]
                    return f"{method} {kind} ({count} outputs of {suite}; the first {entry['first']['message']})"
    raise AssertionError("a result that is not lossless names no bug")
