"""The validation of a candidate: measure every method, judge every output, write one JSON file, show a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.console import console
from workbench.errors import WorkbenchError
from workbench.files import write_json
from workbench.targets import load_target
from workbench.validate.bench import Bench
from workbench.validate.methods import select_methods
from workbench.validate.plan import Plan
from workbench.validate.result import build_result
from workbench.validate.state import MeasurementLog
from workbench.validate.suites import load_suites
from workbench.validate.table import render_table

VALIDATION_FILE = "validation.json"


def validate(
    plan: Plan, drafters: dict[str, Path], folder: Path, training_seconds: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Validates drafters against plain decoding and writes `folder/validation.json`.

    Continues from the measurements that an interrupted validation of the same inputs left in `folder`.

    Args:
        plan: Target, decoding options, suites and protocol: a recipe has them all.
        drafters: Drafter folders by name; the first is the candidate, the others are its yardsticks.
        folder: Where results and the state of an unfinished validation go.
        training_seconds: Of the drafters that it is known of, by name; goes into the results.

    Raises:
        WorkbenchError: an output differs from plain decoding and is no tie; the results are written nevertheless.
    """
    target = load_target(plan.target)
    suites = load_suites(plan.validate.suites, target, plan.seed, plan.decode)
    methods = select_methods(plan.decode, drafters, target.model.device, plan.validate.methods)
    bench = Bench(plan, target, drafters, suites, methods)
    with MeasurementLog(folder, bench.subject()) as log:
        surroundings = bench.measure(log)
        verdicts = {job: bench.judge(log.measurements, job) for job in bench.jobs()}
        result = build_result(bench, log.measurements, verdicts, surroundings, log.num_resumed)
        for name, seconds in (training_seconds or {}).items():
            result["drafters"][name]["training_seconds"] = seconds
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
