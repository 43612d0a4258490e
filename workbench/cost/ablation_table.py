"""The ablation as a table and a figure, from the results of its trainings."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from rich import box
from rich.table import Table

from workbench.validate.figures import BLUE, SKY, render_figure
from workbench.validate.statistics import mean_of_few

_FIGURES = ("acceptance_anchored", "acceptance_masked")
_NOTE = (
    "Estimated acceptance length on held-out blocks (tokens a round, the bonus included), after the same minutes of "
    "training for every row: mean over seeds with its 95 % interval (Student's t). `gain` is the paired difference to "
    "the recipe, seed by seed."
)


def summarize(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per variant, in the order of the results; the recipe's own trainings are what gains refer to."""
    recipe_by_seed = {result["seed"]: result for result in results if result["key"] is None}
    by_variant: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        by_variant.setdefault(result["variant"], []).append(result)
    return [_summarize_variant(own, recipe_by_seed) for own in by_variant.values()]


def _summarize_variant(results: Sequence[dict[str, Any]], recipe_by_seed: dict[int, dict[str, Any]]) -> dict[str, Any]:
    first = results[0]
    entry: dict[str, Any] = {
        "variant": first["variant"],
        "key": first["key"],
        "value": first["value"],
        "seeds": [result["seed"] for result in results],
        "steps": _mean([result["steps"] for result in results]),
        "tokens_per_second": _mean([result["tokens_per_second"] for result in results]),
    }
    for name in _FIGURES:
        entry[name] = _mean([result[name] for result in results])
        if first["key"] is not None:
            gains = [result[name] - recipe_by_seed[result["seed"]][name] for result in results]
            entry[name.replace("acceptance", "gain")] = _mean(gains)
    return entry


def render_rows(variants: Sequence[dict[str, Any]]) -> Table:
    """For the terminal."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("variant")
    for column in ("anchored", "gain", "masked", "gain", "steps"):
        table.add_column(column, justify="right")
    for variant in variants:
        table.add_row(*_cells(variant))
    return table


def render_markdown(recipe: str, minutes: float, variants: Sequence[dict[str, Any]]) -> str:
    """For documents."""
    lines = [
        f"# Ablation of `{recipe}`, {minutes:g} minutes of training each",
        "",
        _NOTE,
        "",
        "| variant | anchored | gain | masked anchors | gain | steps |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += ["| " + " | ".join(_cells(variant)) + " |" for variant in variants]
    return "\n".join(lines) + "\n"


def draw_ablation(variants: Sequence[dict[str, Any]]) -> str:
    """Acceptance of every variant with its interval, beside the recipe's (dashed)."""

    def draw(axes: Axes) -> None:
        for name, colour, label, shift in (
            ("acceptance_anchored", BLUE, "anchored blocks", -0.14),
            ("acceptance_masked", SKY, "masked anchors", 0.14),
        ):
            axes.axvline(variants[0][name]["mean"], color=colour, linewidth=0.9, linestyle=(0, (3, 3)))
            for row, variant in enumerate(variants):
                estimate = variant[name]
                axes.plot(
                    estimate["mean"], row + shift, "o", color=colour, markersize=5, label=label if not row else None
                )
                if estimate["ci95"]:
                    axes.plot(estimate["ci95"], [row + shift] * 2, color=colour, linewidth=1.6)
        axes.set_yticks(range(len(variants)), [variant["variant"] for variant in variants])
        axes.set_ylim(len(variants) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("estimated acceptance length after the same time; lines are 95 % intervals over seeds")
        axes.legend(fontsize=8.5, loc="best")

    return render_figure("ablation", "Ablation", draw, (9.6, 1.0 + 0.42 * len(variants)))


def _mean(values: Sequence[float]) -> dict[str, Any]:
    """Mean and interval; no interval for a single seed."""
    return mean_of_few(values).as_dict() if len(values) > 1 else {"mean": values[0], "ci95": None}


def _render_estimate(estimate: dict[str, Any] | None, sign: str = "") -> str:
    if estimate is None:
        return "-"
    text = f"{estimate['mean']:{sign}.2f}"
    if estimate["ci95"]:
        low, high = estimate["ci95"]
        text += f" ({low:{sign}.2f} to {high:{sign}.2f})"
    return text


def _cells(variant: dict[str, Any]) -> list[str]:
    return [
        variant["variant"],
        _render_estimate(variant["acceptance_anchored"]),
        _render_estimate(variant.get("gain_anchored"), sign="+"),
        _render_estimate(variant["acceptance_masked"]),
        _render_estimate(variant.get("gain_masked"), sign="+"),
        f"{variant['steps']['mean']:.0f}",
    ]
