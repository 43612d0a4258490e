"""Two validations side by side: which drafter is better on which suite, by how much, and how surely.

Speeds of two runs are compared by their speedups: each is relative to plain decoding in its own run, so that a machine
that was slower on one day cancels out. Where both ran the same prompts, the comparison is paired by prompt.

Dimensions: R resample, P prompt.
"""

from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from workbench.errors import WorkbenchError
from workbench.files import read_json
from workbench.validate.methods import BASELINE
from workbench.validate.result import SCHEMA_VERSION
from workbench.validate.statistics import NUM_RESAMPLES, Estimate
from workbench.validate.table import render_estimate

VALIDATION_FILE = "validation.json"


def read_validation(place: Path) -> dict[str, Any]:
    """A validation from its file, or from a run's or a published drafter's folder.

    Raises:
        WorkbenchError: it is not there, or of a schema without what a comparison needs.
    """
    path = place / VALIDATION_FILE if place.is_dir() else place
    validation = read_json(path)
    if not isinstance(validation, dict) or validation.get("schema_version") != SCHEMA_VERSION:
        found = validation.get("schema_version") if isinstance(validation, dict) else None
        raise WorkbenchError(f"{path} has schema {found}, this workbench compares {SCHEMA_VERSION}: validate again")
    if "prompts" not in validation:
        raise WorkbenchError(f"{path} is from before validations recorded every prompt: validate again")
    if not validation["candidate_method"]:
        raise WorkbenchError(f"{path} validates no drafter: nothing to compare")
    return validation


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Compares the candidates of two validations on the suites that both have.

    Returns:
        `caveats`, and for every suite `speedup` and `acceptance_length` of `a` and `b`, `speed_ratio` (a over b) with
        its interval, `num_shared_prompts`, and `probability`: the share of resamples in which a is faster.

    Raises:
        WorkbenchError: they have no suite in common.
    """
    suites = [suite for suite in first["prompts"] if suite in second["prompts"]]
    if not suites:
        raise WorkbenchError(
            f"the validations have no suite in common: {', '.join(first['prompts'])} and {', '.join(second['prompts'])}"
        )
    return {
        "a": _name(first),
        "b": _name(second),
        "caveats": _find_caveats(first, second),
        "suites": {suite: _compare_suite(first, second, suite) for suite in suites},
    }


def _compare_suite(first: dict[str, Any], second: dict[str, Any], suite: str) -> dict[str, Any]:
    cells = [validation["methods"][validation["candidate_method"]][suite] for validation in (first, second)]
    shared = sorted(set(first["prompts"][suite]) & set(second["prompts"][suite]))
    logs = [_log_speedups(validation, suite) for validation in (first, second)]
    is_paired = len(shared) > 1
    rng = np.random.default_rng(0)
    if is_paired:
        shared = [prompt for prompt in shared if prompt in logs[0] and prompt in logs[1]]
        difference_P = np.array([logs[0][prompt] - logs[1][prompt] for prompt in shared])
        value = float(np.median(difference_P))
        index_RP = rng.integers(0, len(shared), size=(NUM_RESAMPLES, len(shared)))
        resampled_R = np.median(difference_P[index_RP], axis=1)
    else:
        own = [np.array(list(log.values())) for log in logs]
        value = float(np.median(own[0]) - np.median(own[1]))
        medians = [np.median(a[rng.integers(0, len(a), size=(NUM_RESAMPLES, len(a)))], axis=1) for a in own]
        resampled_R = medians[0] - medians[1]
    low, high = np.exp(np.quantile(resampled_R, [0.025, 0.975]))
    return {
        "speedup": {"a": cells[0]["speedup"], "b": cells[1]["speedup"]},
        "acceptance_length": {"a": cells[0]["acceptance_length"], "b": cells[1]["acceptance_length"]},
        "speed_ratio": Estimate("median", float(np.exp(value)), float(low), float(high)).as_dict(),
        "probability": float(np.mean(resampled_R > 0) + np.mean(resampled_R == 0) / 2),
        "num_shared_prompts": len(shared) if is_paired else 0,
    }


def _log_speedups(validation: dict[str, Any], suite: str) -> dict[str, float]:
    """Log of the speedup by prompt, where both speeds are defined."""
    own = validation["methods"][validation["candidate_method"]][suite]["per_prompt"]["tokens_per_second"]
    plain = validation["methods"][BASELINE][suite]["per_prompt"]["tokens_per_second"]
    values = zip(validation["prompts"][suite], own, plain, strict=True)
    return {prompt: float(np.log(speed / base)) for prompt, speed, base in values if speed and base}


def _find_caveats(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """What differs beside the drafters."""
    caveats = []
    for key, what in (
        ("target", "fingerprint"),
        ("hardware", "processor"),
        ("hardware", "gpus"),
        ("hardware", "cores"),
    ):
        if first[key][what] != second[key][what]:
            caveats.append(f"{key} {what} differs: {first[key][what]} and {second[key][what]}")
    for section in ("decode", "validate"):
        ours, theirs = first["options"][section], second["options"][section]
        for key in ("temperature", "top_p", "top_k", "engine", "executor", "max_new_tokens"):
            if ours.get(key) != theirs.get(key):
                caveats.append(f"{section}.{key} differs: {ours.get(key)} and {theirs.get(key)}")
    for name, validation in (("a", first), ("b", second)):
        caveats += [f"{name}: {warning}" for warning in validation["warnings"]]
        if not validation["lossless"]:
            caveats.append(f"{name} is not lossless")
    return caveats


def _name(validation: dict[str, Any]) -> str:
    return f"{validation['recipe']} ({validation['candidate_method']}, {validation['date'][:10]})"


def render_comparison(comparison: dict[str, Any]) -> Group:
    """The comparison as a table for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("suite", no_wrap=True)
    for column in ("tau a", "tau b", "speedup a", "speedup b", "a / b"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("so")
    for suite, entry in comparison["suites"].items():
        table.add_row(
            suite,
            *(f"{entry['acceptance_length'][name]['mean']:.2f}" for name in "ab"),
            *(f"{entry['speedup'][name]['median']:.2f}x" for name in "ab"),
            render_estimate(entry["speed_ratio"], suffix="x"),
            render_verdict(entry),
        )
    lines = [Text(f"a: {comparison['a']}"), Text(f"b: {comparison['b']}"), table]
    lines += [Text(f"note: {caveat}", style="yellow") for caveat in comparison["caveats"]]
    return Group(*lines)


def render_verdict(entry: dict[str, Any]) -> str:
    """`a is faster (99.9 % sure)`, or that it is not clear."""
    (low, high), probability = entry["speed_ratio"]["ci95"], entry["probability"]
    how = "paired" if entry["num_shared_prompts"] else "other prompts"
    if low <= 1 <= high:
        return f"no clear difference ({how})"
    winner, sure = ("a", probability) if low > 1 else ("b", 1 - probability)
    return f"{winner} is faster ({min(99.9, 100 * sure):.1f} % sure, {how})"
