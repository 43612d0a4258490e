"""A validation as a table on the terminal."""

from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

_LONGEST_NAME = 16


def render_table(validation: dict[str, Any]) -> Group:
    """One table a suite, one row a method; tau is the acceptance length, hits the share of blocks drafted in time."""
    suites = next(iter(validation["methods"].values()))
    return Group(*(_render_suite(validation, suite) for suite in suites))


def _render_suite(validation: dict[str, Any], suite: str) -> Table:
    table = Table(
        title=suite, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("method", no_wrap=True)
    for column in ("layers", "tau", "tokens/s", "speedup", "hits", "lossless"):
        table.add_column(column, justify="right", no_wrap=True)
    for method, cells in validation["methods"].items():
        cell = cells[suite]
        table.add_row(
            # Broken at a hyphen, so that the table fits a terminal of 80 columns.
            method.replace("-", "-\n", 1) if len(method) > _LONGEST_NAME else method,
            render_layers(validation, method),
            f"{value_of(cell['acceptance_length']):.2f}" if "acceptance_length" in cell else "-",
            f"{value_of(cell['tokens_per_second']):.0f}",
            render_estimate(cell["speedup"], suffix="x"),
            render_hit_rate(cell),
            render_losslessness(cell),
            style="red" if cell["lossless"] is False else "",
        )
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
    if not drafter:
        return "-"
    return (
        f"{drafter['num_layers']} of {drafter['parent_num_layers']}"
        if "parent" in drafter
        else str(drafter["num_layers"])
    )


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
