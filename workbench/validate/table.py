"""A validation as a table on the terminal."""

from typing import Any

from rich import box
from rich.table import Table


def render_table(validation: dict[str, Any]) -> Table:
    """One row per suite and method; tau is the acceptance length, hits the share of rounds found drafted ahead."""
    several = len({suite for suites in validation["methods"].values() for suite in suites}) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if several:
        table.add_column("suite", no_wrap=True)
    table.add_column("method")
    # On a narrow terminal only the method's name is broken, at its hyphens.
    for column, width in (("layers", 7), ("tau", 4), ("tokens/s", 8), ("speedup", 17), ("hits", 5), ("lossless", 9)):
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    suites = next(iter(validation["methods"].values()))
    for suite in suites:
        for method, cells in validation["methods"].items():
            cell = cells[suite]
            row = [
                method,
                render_layers(validation, method),
                f"{value_of(cell['acceptance_length']):.2f}" if "acceptance_length" in cell else "-",
                f"{value_of(cell['tokens_per_second']):.0f}",
                render_estimate(cell["speedup"], suffix="x"),
                render_hit_rate(cell),
                render_losslessness(cell),
            ]
            table.add_row(*([suite, *row] if several else row), style=style_of(cell))
    return table


def render_estimate(estimate: dict[str, Any] | None, digits: int = 2, suffix: str = "") -> str:
    """`2.41x (2.35-2.47)`; a dash for nothing."""
    if not estimate:
        return "-"
    value = value_of(estimate)
    low, high = estimate["ci95"]
    return f"{value:.{digits}f}{suffix} ({low:.{digits}f}-{high:.{digits}f})"


def value_of(estimate: dict[str, Any]) -> float:
    """The median or mean of an estimate."""
    return estimate["median"] if "median" in estimate else estimate["mean"]


def render_layers(validation: dict[str, Any], method: str) -> str:
    """Layers of a method's drafter, of its parent's: `8 of 10`."""
    drafter = validation["drafters"].get(validation["method_details"][method].get("drafter"))
    return f"{drafter['num_layers']} of {drafter['parent_num_layers']}" if drafter else "-"


def render_hit_rate(cell: dict[str, Any]) -> str:
    """Share of rounds whose next block was there."""
    hit_rate = cell.get("hypotheses", {}).get("hit_rate")
    return "-" if hit_rate is None else f"{100 * hit_rate:.0f} %"


def render_losslessness(cell: dict[str, Any]) -> str:
    """`yes (200)`, with ties or differences counted."""
    counts = cell["losslessness"]
    total = counts["identical"] + counts["tie"] + counts["different"]
    if cell["lossless"] is None:
        return "in law"
    if not cell["lossless"]:
        return f"NO ({counts['different']}/{total})"
    return f"yes ({total}, {counts['tie']} ties)" if counts["tie"] else f"yes ({total})"


def style_of(cell: dict[str, Any]) -> str:
    """Red for a method that is not lossless."""
    return "red" if cell["lossless"] is False else ""
