"""The content of validation.json, which `docs/validation.md` describes field by field."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from workbench.drafter.dflash import is_dflash, read_dflash_spec
from workbench.drafter.model import read_spec
from workbench.files import read_json
from workbench.host import inference_dtype
from workbench.validate import summary
from workbench.validate.bench import Bench, Surroundings, drafter_hashes
from workbench.validate.losslessness import Verdict
from workbench.validate.machine import BUSY_CORES, describe_hardware, describe_versions
from workbench.validate.memory import cache_mib, folder_weights_mib, weights_mib
from workbench.validate.methods import BASELINE, CANDIDATE, STOCK_BASELINE, WHOLE_MACHINE_BASELINE, Method
from workbench.validate.timing import Job, Measurement, read_date

SCHEMA_VERSION = 1
"""Grows when a field changes its meaning or goes away; new fields leave it as it is."""


def build_result(
    bench: Bench,
    measurements: dict[Job, Measurement],
    verdicts: dict[Job, Verdict],
    surroundings: Surroundings,
    num_resumed: int,
) -> dict[str, Any]:
    """Everything that a report shows.

    Args:
        bench: What was measured.
        measurements: All of them.
        verdicts: The judgement of each.
        surroundings: What was read from the machine around the measurements.
        num_resumed: Measurements that an interrupted validation had made.
    """
    plan = bench.plan
    cells: dict[str, Any] = {method.name: {} for method in bench.methods}
    for method in bench.methods:
        for suite in bench.suites:
            cells[method.name][suite.name] = _build_cell(bench, measurements, verdicts, method, suite.name)
    judged = [cell["lossless"] for suites in cells.values() for cell in suites.values()]
    load = describe_load(list(measurements.values()), surroundings.idle_load)
    load["verification_slowdown"] = surroundings.slowdowns
    warnings = [load["warning"]] if "warning" in load else []
    failing = [name for name, suites in cells.items() if any(cell["num_drafter_failures"] for cell in suites.values())]
    if failing:
        warnings.append(f"the drafter of {', '.join(failing)} did not always answer: some rounds went without a draft")
    other = [method.name for method in bench.methods if not method.is_stock and method.engine != plan.decode.engine]
    if other:
        warnings.append(
            f"{', '.join(other)} runs on the eager engine, the other rows on {plan.decode.engine}: compare tokens a "
            "round, not speeds"
        )
    if num_resumed:
        warnings.append(f"{num_resumed} of {len(measurements)} measurements are from a run that was interrupted")
    return {
        "schema_version": SCHEMA_VERSION,
        "recipe": plan.name,
        "date": read_date(),
        "lossless": False not in judged,
        "warnings": warnings,
        "candidate": next(iter(bench.drafters), None),
        "candidate_method": find_candidate(bench.methods),
        "target": _describe_target(bench),
        "drafters": {name: _describe_drafter(folder) for name, folder in bench.drafters.items()},
        "options": {"validate": asdict(plan.validate), "decode": asdict(plan.decode)},
        "seed": plan.seed,
        "method_details": {method.name: _describe_method(method) for method in bench.methods},
        "prompts": {suite.name: suite.fingerprints[: plan.validate.timed_prompts] for suite in bench.suites},
        "methods": cells,
        "comparisons": _compare_methods(bench, measurements),
        "hardware": describe_hardware(),
        "versions": describe_versions(),
        "load": load,
        "memory": _describe_memory(bench, measurements, surroundings),
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
    plan = bench.plan
    timed = _timed(bench, measurements, method.name, suite)
    names = {"speedup": BASELINE, "speedup_whole_machine": WHOLE_MACHINE_BASELINE}
    if method.is_stock:
        names["speedup_transformers"] = STOCK_BASELINE
    baselines = {name: _timed(bench, measurements, baseline, suite) for name, baseline in names.items()}
    own = sorted(
        (job for job in measurements if (job.suite, job.method) == (suite, method.name)),
        key=lambda job: (job.repetition, job.prompt),
    )
    once = [measurements[job] for job in own if job.repetition == 0]
    domains = next(entry.domains for entry in bench.suites if entry.name == suite)
    return {
        **summary.summarize_speed(timed, {name: runs for name, runs in baselines.items() if runs}, plan.seed),
        **summary.summarize_acceptance(once, plan.seed),
        **summary.summarize_domains(once, domains),
        "per_prompt": summary.per_prompt(timed),
        "round_ms": summary.summarize_rounds(run for runs in timed.values() for run in runs),
        **summary.summarize_losslessness([verdicts[job] for job in own], bench.is_exact(method, suite)),
        "num_drafter_failures": sum(measurements[job].num_failures for job in own),
    }


def _timed(bench: Bench, measurements: dict[Job, Measurement], method: str, suite: str) -> dict[int, list[Measurement]]:
    """Repetitions by prompt of one method on the timed prompts of one suite."""
    prompts: dict[int, list[Measurement]] = {}
    for job, run in measurements.items():
        if (job.method, job.suite) == (method, suite) and job.prompt < bench.plan.validate.timed_prompts:
            prompts.setdefault(job.prompt, []).append(run)
    return prompts


def find_candidate(methods: Sequence[Method]) -> str | None:
    """Row that a validation is about: asynchronous decoding with the first drafter, or else the first that has one."""
    names = [method.name for method in methods if method.drafter is not None]
    return CANDIDATE if CANDIDATE in names else next(iter(names), None)


def _compare_methods(bench: Bench, measurements: dict[Job, Measurement]) -> list[dict[str, Any]]:
    """The candidate's decoder against every other method, paired by prompt."""
    candidate = find_candidate(bench.methods)
    if candidate is None:
        return []
    return [
        {
            "method": candidate,
            "than": other.name,
            "suite": suite.name,
            "speed_ratio": summary.compare_speeds(
                _timed(bench, measurements, candidate, suite.name),
                _timed(bench, measurements, other.name, suite.name),
                bench.plan.seed,
            ),
        }
        for suite in bench.suites
        for other in bench.methods
        if other.name != candidate
    ]


def _describe_memory(bench: Bench, measurements: dict[Job, Measurement], surroundings: Surroundings) -> dict[str, Any]:
    """Weights and cache of each role at the longest sequence that was decoded, and peaks of the processes."""
    lengths = {(suite.name, index): len(ids) for suite in bench.suites for index, ids in enumerate(suite.prompt_ids)}
    longest = max(lengths[job.suite, job.prompt] + len(run.token_ids) for job, run in measurements.items())
    target = bench.target.model
    return {
        "longest_sequence_tokens": longest,
        "target": {
            "weights_mib": weights_mib(target),
            "cache_mib": cache_mib(target.config, longest, target.dtype.itemsize),
        },
        "drafters": {
            name: _drafter_memory(folder, longest, inference_dtype(bench.plan.decode.drafter_dtype))
            for name, folder in bench.drafters.items()
        },
        "process_peak_mib": surroundings.process_peak_mib,
        "worker_peak_mib": surroundings.worker_peak_mib,
        "device_peak_mib": surroundings.device_peak_mib,
    }


def _drafter_memory(folder: Path, num_rows: int, dtype: torch.dtype) -> dict[str, float]:
    config = SimpleNamespace(**read_json(folder / "config.json"))
    return {
        "weights_mib": folder_weights_mib(folder, dtype),
        "cache_mib": cache_mib(config, num_rows, dtype.itemsize),
    }


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
        "dtype": _name_of(target.model.dtype),
        "device": str(target.model.device),
    }


def _describe_method(method: Method) -> dict[str, Any]:
    options = method.options
    details: dict[str, Any] = {
        "kind": method.kind,
        "engine": method.engine,
        "target_threads": method.target_threads,
    }
    if method.drafter:
        details |= {
            "drafter": method.drafter,
            "drafter_dtype": _name_of(inference_dtype(options.drafter_dtype)),
            "executor": options.executor,
        }
    return details


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _describe_drafter(folder: Path) -> dict[str, Any]:
    if is_dflash(folder):
        return _describe_dflash(folder)
    spec = read_spec(folder)
    return {
        "family": "standalone",
        "num_layers": len(spec.kept_layers),
        "parent": spec.parent,
        "parent_num_layers": spec.parent_num_layers,
        "kept_layers": spec.kept_layers,
        "block_size": spec.block_size,
        "block_attention": spec.block_attention,
        "files": drafter_hashes(folder),
    }


def _describe_dflash(folder: Path) -> dict[str, Any]:
    spec = read_dflash_spec(folder)
    return {
        "family": "dflash",
        "num_layers": read_json(folder / "config.json")["num_hidden_layers"],
        "target_layer_ids": spec.target_layer_ids,
        "block_size": spec.block_size,
        "block_attention": spec.block_attention,
        **({"training_seconds": spec.training_seconds} if spec.training_seconds else {}),
        "files": drafter_hashes(folder),
    }


def _cores(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.1f} cores"
