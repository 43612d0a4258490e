"""What a better drafter would take: goals and what is missing, learning curves continued, plans for large targets.

Reads what was recorded in `docs/measurements/`, goals from `docs/goals.json` and published figures from
`docs/published.json`.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.files import read_json
from workbench.result_tables import render_table
from workbench.validate.table import render_estimate

GOALS = Path("docs/goals.json")
PUBLISHED = Path("docs/published.json")
_ALL_SUITES = "mean of all"
_MULTIPLES = (1.0, 2.0, 4.0)
"""Of the training so far: those of `workbench.distill.curve.FORECASTS` that the page shows."""


def render_outlook(folders: Sequence[Path], goals: Path = GOALS, published: Path = PUBLISHED) -> list[str]:
    """The section's parts; none where nothing is compared with a goal, continued or planned."""
    wanted = [row for folder in folders for row in _goal_rows(folder, read_json(goals))]
    curves = _curve_rows(folders)
    is_run = {folder: (folder / "validation.json").is_file() for folder in folders}
    plans = [folder for folder in folders if (folder / "plan.json").is_file() and not is_run[folder]]
    parts = ["## What it would take"] if wanted or curves or plans else []
    if wanted:
        parts += [
            "Goals, and by how much they are missed. The acceptance length that a goal needs is that at which it would "
            "be reached in rounds of the same time.",
            render_table(["recipe", "suite", "speed", "goal", "measured", "", "acceptance length", "needed"], wanted),
        ]
    if curves:
        parts += [
            "Where the learning curves are heading: estimated acceptance length on held-out blocks, fitted as "
            "limit - gap * (1 + minutes / scale) ^ -rate, after so many times the training. A longer training whose "
            "learning rate falls later as well does better than such a continuation.",
            render_table(["recipe", "blocks", "minutes", *(f"{m:g}x" for m in _MULTIPLES), "limit"], curves),
            *_render_published(read_json(published)),
        ]
    if plans:
        parts += _render_plans(plans, _step_costs(folders))
    return parts


def _goal_rows(folder: Path, goals: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One row for every goal of a recipe whose methods and suites were measured."""
    path = folder / "validation.json"
    validation = read_json(path) if path.is_file() else {"comparisons": []}
    ratios = {(row["method"], row["than"], row["suite"]): row["speed_ratio"] for row in validation["comparisons"]}
    rows = []
    for goal in goals:
        pair = (goal["method"], goal["than"])
        if goal["suite"] == _ALL_SUITES:
            suites = [suite for *own, suite in ratios if tuple(own) == pair]
            is_measured = len(suites) > 1
        else:
            suites = [goal["suite"]]
            is_measured = (*pair, goal["suite"]) in ratios
        if goal["recipe"] != folder.name or not is_measured:
            continue
        cells = validation["methods"][goal["method"]]
        length = statistics.fmean(cells[suite]["acceptance_length"]["mean"] for suite in suites)
        measured = statistics.fmean(ratios[*pair, suite]["median"] for suite in suites)
        is_reached = measured >= goal["ratio"]
        rows.append(
            [
                folder.name,
                goal["suite"],
                f"{goal['method']} over {goal['than']}",
                f"{goal['ratio']:.2f}x",
                render_estimate(ratios[*pair, suites[0]], suffix="x") if len(suites) == 1 else f"{measured:.2f}x",
                "reached" if is_reached else f"{1 - measured / goal['ratio']:.0%} too low",
                f"{length:.2f}",
                "-" if is_reached else f"{length * goal['ratio'] / measured:.2f}",
            ]
        )
    return rows


def _curve_rows(folders: Sequence[Path]) -> list[list[str]]:
    rows = []
    for folder in folders:
        report = read_json(folder / "distill.json") if (folder / "distill.json").is_file() else {"forecasts": []}
        for fit in report["forecasts"]:
            if fit["axis"] == "seconds":
                by_multiple = {entry["multiple"]: entry for entry in fit["predictions"]}
                rows.append(
                    [
                        folder.name,
                        fit["figure"].removeprefix("acceptance_"),
                        f"{by_multiple[1.0]['seconds'] / 60:.0f}",
                        *(render_estimate(by_multiple[multiple]) for multiple in _MULTIPLES),
                        f"{fit['limit']:.2f}",
                    ]
                )
    return rows


def _render_published(published: dict[str, Any]) -> list[str]:
    lengths = [
        [entry["method"], entry["target"], suite, f"{value:.2f}"]
        for entry in published["acceptance_lengths"]
        for suite, value in entry["suites"].items()
    ]
    speedups = [
        f"{entry['method']} has {entry['speedup']:.2f}x on {entry['target']} over {entry['suites']} benchmarks"
        for entry in published["speedups"]
    ]
    sources = sorted({entry["source"] for entry in [*published["acceptance_lengths"], *published["speedups"]]})
    return [
        f"Published: {'; '.join(speedups)}. A round holds a verification, which costs no less than a plain step, so a "
        f"speedup needs at least the same acceptance length. Sources: {', '.join(sources)}.",
        render_table(["published method", "target", "suite", "acceptance length"], lengths),
    ]


def _step_costs(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Measured ratios of a distillation step to plain training, by recipe."""
    paths = {folder.name: folder / "throughput.json" for folder in folders}
    return {name: read_json(path)["ratio"] for name, path in paths.items() if path.is_file()}


def _render_plans(folders: Sequence[Path], step_costs: dict[str, dict[str, Any]]) -> list[str]:
    largest = max([1.0, *(ratio["median"] for ratio in step_costs.values())])
    measured = ", ".join(f"{render_estimate(ratio, suffix='x')} on {name}" for name, ratio in step_costs.items())
    rows = []
    for folder in folders:
        plan = read_json(folder / "plan.json")
        for cost in plan["training"]:
            needed_gb = sum(cost["memory_bytes"].values()) / 1e9
            rows.append(
                [
                    folder.name,
                    f"{cost['num_devices']} {plan['device']['name']}",
                    f"{plan['drafter']['parameters'] / 1e9:.1f} B, {plan['drafter']['num_layers']} layers",
                    f"{cost['rows'] / 1e9:.1f} G",
                    f"{cost['hours'] * largest:.0f}",
                    f"{needed_gb:.0f} GB" + ("" if cost["fits"] else " (does not fit)"),
                    f"{plan['corpus']['device_hours']:.0f}",
                ]
            )
    attained = read_json(folders[0] / "plan.json")["device"]["attained_training"]
    basis = (
        f"What a distillation step costs beside plain training of as many rows was measured ({measured}); the hours "
        f"are those of plain training at {attained:.0%} of the device's matrix rate, times {largest:.2f}."
        if measured
        else f"The hours are those of a training at {attained:.0%} of the device's matrix rate."
    )
    header = ["recipe", "devices", "drafter", "rows", "hours", "memory each", "device hours for the corpus"]
    return [f"Drafters for large targets, from `make plan`. {basis}", render_table(header, rows)]
