"""The content of validation.json, which `docs/validation.md` describes field by field."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.drafter.model import read_spec
from workbench.validate import summary
from workbench.validate.bench import Bench, drafter_hashes
from workbench.validate.losslessness import Verdict
from workbench.validate.machine import BUSY_CORES, describe_hardware, describe_versions
from workbench.validate.methods import BASELINE, CANDIDATE, WHOLE_MACHINE_BASELINE, Method
from workbench.validate.timing import Job, Measurement, read_date

SCHEMA_VERSION = 1
"""Grows when a field changes its meaning or goes away; new fields leave it as it is."""


def build_result(
    bench: Bench,
    measurements: dict[Job, Measurement],
    verdicts: dict[Job, Verdict],
    idle_load: float | None,
    num_resumed: int,
) -> dict[str, Any]:
    """Everything that a report shows.

    Args:
        bench: What was measured.
        measurements: All of them.
        verdicts: The judgement of each.
        idle_load: Cores that others used before the first measurement.
        num_resumed: Measurements that an interrupted validation had made.
    """
    recipe = bench.recipe
    cells: dict[str, Any] = {method.name: {} for method in bench.methods}
    for method in bench.methods:
        for suite in bench.suites:
            cells[method.name][suite.name] = _build_cell(bench, measurements, verdicts, method, suite.name)
    judged = [cell["lossless"] for suites in cells.values() for cell in suites.values()]
    load = describe_load(list(measurements.values()), idle_load)
    warnings = [load["warning"]] if "warning" in load else []
    failing = [name for name, suites in cells.items() if any(cell["num_drafter_failures"] for cell in suites.values())]
    if failing:
        warnings.append(f"the drafter of {', '.join(failing)} did not always answer: some rounds went without a draft")
    if num_resumed:
        warnings.append(f"{num_resumed} of {len(measurements)} measurements are from a run that was interrupted")
    return {
        "schema_version": SCHEMA_VERSION,
        "recipe": recipe.name,
        "date": read_date(),
        "lossless": False not in judged,
        "warnings": warnings,
        "candidate": next(iter(bench.drafters), None),
        "target": _describe_target(bench),
        "drafters": {name: _describe_drafter(folder) for name, folder in bench.drafters.items()},
        "options": {"validate": asdict(recipe.validate), "decode": asdict(recipe.decode)},
        "seed": recipe.seed,
        "method_details": {method.name: _describe_method(method) for method in bench.methods},
        "methods": cells,
        "comparisons": _compare_methods(bench, measurements),
        "hardware": describe_hardware(),
        "versions": describe_versions(),
        "load": load,
    }


def describe_load(measurements: list[Measurement], idle_load: float | None) -> dict[str, Any]:
    """Cores that others used, before and during, and a warning where that was too much."""
    known = [(run.others_cores, run.total_s) for run in measurements if run.others_cores is not None]
    seconds = sum(total for _, total in known)
    during = sum(cores * total for cores, total in known) / seconds if seconds else None
    load: dict[str, Any] = {"others_cores_before": idle_load, "others_cores_during": during}
    worst = max((value for value in (idle_load, during) if value is not None), default=None)
    if worst is not None and worst > BUSY_CORES:
        load["warning"] = (
            f"the machine was busy: others used {_cores(idle_load)} before and {_cores(during)} during the "
            "measurement; speeds are too low and their ratios may be off"
        )
    return load


def _build_cell(
    bench: Bench,
    measurements: dict[Job, Measurement],
    verdicts: dict[Job, Verdict],
    method: Method,
    suite: str,
) -> dict[str, Any]:
    """One method on one suite."""
    recipe = bench.recipe
    timed = _timed(bench, measurements, method.name, suite)
    names = {"speedup": BASELINE, "speedup_whole_machine": WHOLE_MACHINE_BASELINE}
    baselines = {name: _timed(bench, measurements, baseline, suite) for name, baseline in names.items()}
    own = sorted(
        (job for job in measurements if (job.suite, job.method) == (suite, method.name)),
        key=lambda job: (job.repetition, job.prompt),
    )
    once = [measurements[job] for job in own if job.repetition == 0]
    exact = recipe.decode.temperature == 0 or recipe.decode.acceptance == "sample_match" or method.drafter is None
    return {
        **summary.summarize_speed(timed, {name: runs for name, runs in baselines.items() if runs}, recipe.seed),
        **summary.summarize_acceptance(once, recipe.seed),
        "round_ms": summary.summarize_rounds(run for runs in timed.values() for run in runs),
        **summary.summarize_losslessness([verdicts[job] for job in own], exact),
        "num_drafter_failures": sum(measurements[job].num_failures for job in own),
    }


def _timed(bench: Bench, measurements: dict[Job, Measurement], method: str, suite: str) -> dict[int, list[Measurement]]:
    """Repetitions by prompt of one method on the timed prompts of one suite."""
    prompts: dict[int, list[Measurement]] = {}
    for job, run in measurements.items():
        if (job.method, job.suite) == (method, suite) and job.prompt < bench.recipe.validate.timed_prompts:
            prompts.setdefault(job.prompt, []).append(run)
    return prompts


def _compare_methods(bench: Bench, measurements: dict[Job, Measurement]) -> list[dict[str, Any]]:
    """The candidate's asynchronous decoder against every other method, paired by prompt."""
    others = [method.name for method in bench.methods if method.name != CANDIDATE]
    if not bench.drafters:
        return []
    return [
        {
            "method": CANDIDATE,
            "than": other,
            "suite": suite.name,
            "speed_ratio": summary.compare_speeds(
                _timed(bench, measurements, CANDIDATE, suite.name),
                _timed(bench, measurements, other, suite.name),
                bench.recipe.seed,
            ),
        }
        for suite in bench.suites
        for other in others
    ]


def _describe_target(bench: Bench) -> dict[str, Any]:
    target = bench.target
    return {
        "identity": target.identity,
        "revision": target.revision,
        "fingerprint": target.fingerprint,
        "template_hash": target.template_hash,
        "thinking": target.thinking,
        "num_layers": target.config.num_hidden_layers,
        "num_parameters": target.model.num_parameters(),
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "device": str(target.model.device),
    }


def _describe_method(method: Method) -> dict[str, Any]:
    options = method.options
    details: dict[str, Any] = {
        "kind": method.kind,
        "engine": options.engine,
        "target_threads": method.target_threads,
    }
    if method.drafter:
        details |= {"drafter": method.drafter, "drafter_dtype": options.drafter_dtype, "executor": options.executor}
    return details


def _describe_drafter(folder: Path) -> dict[str, Any]:
    spec = read_spec(folder)
    return {
        "num_layers": len(spec.kept_layers),
        "parent": spec.parent,
        "parent_num_layers": spec.parent_num_layers,
        "kept_layers": spec.kept_layers,
        "block_size": spec.block_size,
        "block_attention": spec.block_attention,
        "files": drafter_hashes(folder),
    }


def _cores(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.1f} cores"
