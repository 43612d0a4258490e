"""The figures of a report, as SVG text to be put into a page.

Every figure is drawn from plain values of a result; none reads a file. Colours are told apart by colour-blind readers
and in grey print (palette of Okabe and Ito).
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from workbench.validate.table import value_of

BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#8A8F98",
)
_INK = "#1f2933"

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's font
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": "#b8c0cc",
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e8ee",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


def draw_speedups(suites: Sequence[str], methods: dict[str, dict[str, Any]]) -> str:
    """Speedup over plain decoding with its interval: a group of bars a suite, a bar a method."""
    names = list(methods)
    height = 0.5 + 0.34 * len(names) * len(suites) + 0.3 * len(suites)

    def draw(axes: Axes) -> None:
        place, ticks, labels = 0.0, [], []
        longest = max(cells[suite]["speedup"]["ci95"][1] for cells in methods.values() for suite in suites)
        for suite in suites:
            if len(suites) > 1:
                axes.text(0, place, suite, va="center", fontweight="bold")
                place += 0.9
            for name in names:
                estimate = methods[name][suite]["speedup"]
                value, (low, high) = value_of(estimate), estimate["ci95"]
                axes.barh(place, value, height=0.66, color=_method_colour(name), alpha=_opacity(name))
                axes.plot([low, high], [place, place], color=_INK, linewidth=1.4, solid_capstyle="butt")
                axes.text(high + 0.015 * longest, place, f"{value:.2f}x", va="center")
                ticks.append(place)
                labels.append(name)
                place += 1
            place += 0.5
        axes.set_yticks(ticks, labels)
        axes.set_ylim(place - 0.4, -0.7)
        axes.set_xlim(0, longest * 1.14)
        axes.axvline(1, color=_INK, linewidth=0.8, linestyle=(0, (3, 3)))
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("speedup over plain decoding; lines are 95 % intervals")

    return render_figure("speedups", "Speedup by suite and method", draw, (9.6, height))


def draw_acceptance(cells: dict[str, dict[str, Any]]) -> str:
    """Survival by position with its interval, and the conditional rate, one colour a suite."""

    def draw(axes: Axes) -> None:
        for colour, (suite, rates) in zip(_cycle(len(cells)), cells.items(), strict=False):
            positions = range(1, len(rates["survival"]) + 1)
            low, high = zip(*rates["survival_ci95"], strict=True)
            axes.fill_between(positions, low, high, color=colour, alpha=0.18, linewidth=0)
            prefix = f"{suite}: " if len(cells) > 1 else ""
            axes.plot(positions, rates["survival"], "o-", color=colour, markersize=4, label=f"{prefix}all up to here")
            axes.plot(
                positions, rates["conditional"], "s--", color=colour, markersize=3, linewidth=1, alpha=0.8,
                label=f"{prefix}this one, given those before",
            )  # fmt: skip
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("position of the draft token")
        axes.set_ylabel("share of rounds accepted")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=8.5)

    return render_figure("acceptance", "Acceptance by position", draw, (4.7, 3.3))


def draw_rounds(parts: dict[str, dict[str, Any]], name: str) -> str:
    """Where the milliseconds of a round go, by method, with the packed pass that runs beside the verification."""
    names = list(parts)

    def draw(axes: Axes) -> None:
        for row, method in enumerate(names):
            left = 0.0
            for part, colour in (("verify", BLUE), ("draft", ORANGE), ("other", GREY)):
                width = max(0.0, parts[method][part]["mean"])
                label = {"verify": "verification", "draft": "drafting, target waits", "other": "the rest"}[part]
                axes.barh(row, width, left=left, height=0.42, color=colour, label=label if row == 0 else None)
                left += width
            packed = parts[method]["packed"]["mean"]
            if packed:
                is_first = not any(parts[other]["packed"]["mean"] for other in names[:row])
                axes.barh(
                    row + 0.32, packed, height=0.16, color=GREEN, alpha=0.85,
                    label="drafting ahead, meanwhile" if is_first else None,
                )  # fmt: skip
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.35, -0.5)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("milliseconds of a mean round")
        _legend_below(axes)

    return render_figure(name, "Where a round's time goes", draw, (9.6, 1.15 + 0.5 * len(names)))


def draw_hits(by_num_accepted: dict[str, dict[str, Any]], name: str) -> str:
    """How the next block was found, by the accepted count that had to be guessed; widths are shares of rounds."""
    total = sum(entry["num_rounds"] for entry in by_num_accepted.values())
    outcomes = (
        ("hit_anchored", GREEN, "hit, bonus guessed"),
        ("hit_masked", SKY, "hit, any bonus"),
        ("miss_bonus", YELLOW, "miss, other bonus"),
        ("miss_count", ORANGE, "miss, other count"),
    )

    def draw(axes: Axes) -> None:
        left, ticks = 0.0, []
        for entry in by_num_accepted.values():
            width, bottom = entry["num_rounds"] / total, 0.0
            for outcome, colour, _ in outcomes:
                share = entry.get(outcome, 0.0)
                axes.bar(left, share, width, bottom, align="edge", color=colour, edgecolor="white", linewidth=0.8)
                bottom += share
            ticks.append(left + width / 2)
            left += width
        for outcome, colour, label in outcomes:
            if any(outcome in entry for entry in by_num_accepted.values()):
                axes.bar(0, 0, color=colour, label=label)
        labels = [count if by_num_accepted[count]["num_rounds"] / total > 0.035 else "" for count in by_num_accepted]
        axes.set_xticks(ticks, labels)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.grid(visible=False)
        axes.set_xlabel("draft tokens accepted; width is the share of rounds")
        axes.set_ylabel("share of next blocks")
        _legend_below(axes, columns=2)

    return render_figure(name, "Hits by outcome", draw, (4.7, 3.3))


def draw_front(points: Sequence[dict[str, Any]], front: Sequence[dict[str, Any]]) -> str:
    """Acceptance length against the latency of the packed pass, for everything that the search estimated."""
    states = {
        "unpruned": (_INK, "D", "unpruned"),
        "same training": (SKY, "D", "unpruned, trained as long as healed ones"),
        "before healing": (GREY, "o", "before healing"),
        "healed": (BLUE, "o", "healed"),
    }

    def draw(axes: Axes) -> None:
        for state, (colour, marker, label) in states.items():
            own = [point for point in points if point["state"] == state]
            if own:
                axes.plot(
                    [1e3 * point["packed_s"] for point in own], [point["acceptance_length"] for point in own],
                    marker, color=colour, markersize=5, alpha=0.8, label=label,
                )  # fmt: skip
        axes.plot(
            [1e3 * point["packed_s"] for point in front], [point["acceptance_length"] for point in front],
            "-", color=ORANGE, linewidth=1.2, label="Pareto front", zorder=1,
        )  # fmt: skip
        for point in front:
            axes.annotate(
                "-".join(map(str, point["dropped"])) or "none", (1e3 * point["packed_s"], point["acceptance_length"]),
                (5, -11), textcoords="offset points", fontsize=7.5,
            )  # fmt: skip
        for best in (point for point in points if point["is_chosen"]):
            axes.plot(
                1e3 * best["packed_s"], best["acceptance_length"], "o", markersize=12, fillstyle="none",
                color=ORANGE, markeredgewidth=1.8, label=f"chosen, {len(best['dropped'])} dropped",
            )  # fmt: skip
        axes.set_xlabel("packed pass, milliseconds")
        axes.set_ylabel("estimated acceptance length")
        axes.margins(0.12)
        _legend_below(axes, columns=2)

    return render_figure("front", "Pruning front", draw, (4.7, 3.3))


def draw_learning_curve(curve: Sequence[dict[str, float]], forecasts: Sequence[dict[str, Any]] = ()) -> str:
    """Estimated acceptance length on held-out blocks over training time, and where its fit is heading (dashed)."""

    def draw(axes: Axes) -> None:
        minutes = [point["seconds"] / 60 for point in curve]
        for key, colour, label in (
            ("acceptance_anchored", BLUE, "anchored blocks"),
            ("acceptance_masked", SKY, "masked anchors"),
        ):
            if all(key in point for point in curve):
                axes.plot(minutes, [point[key] for point in curve], "o-", color=colour, markersize=4, label=label)
            for fit in forecasts:
                if (fit["figure"], fit["axis"]) == (key, "seconds"):
                    ahead = [entry["seconds"] / 60 for entry in fit["predictions"]]
                    low, high = zip(*(entry["ci95"] for entry in fit["predictions"]), strict=True)
                    axes.plot(ahead, [entry["mean"] for entry in fit["predictions"]], "--", color=colour, linewidth=1.2)
                    axes.fill_between(ahead, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_ylim(bottom=1)
        axes.set_xlim(left=0)
        axes.set_xlabel("minutes of distillation")
        axes.set_ylabel("estimated acceptance length")
        axes.legend(fontsize=8.5, loc="lower right")

    return render_figure("curve", "Learning curve", draw, (4.7, 3.3))


def render_figure(name: str, title: str, draw: Callable[[Axes], None], size: tuple[float, float]) -> str:
    """Draws into a figure of its own and returns its SVG element, with ids that no other figure of the page has."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    name = re.sub(r"[^A-Za-z0-9-]", "_", name)
    svg = re.sub(r'(?<=\sid=")(?=[^"])', f"{name}-", svg)
    svg = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


def _legend_below(axes: Axes, columns: int = 4) -> None:
    """A legend outside of the axes, for which the layout makes room."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.legend(fontsize=8.5, loc="outside lower center", ncols=columns)


def _method_colour(name: str) -> str:
    kind = name.split("-")[0]
    colours = {"autoregressive": GREY, "synchronous": BLUE, "asynchronous": ORANGE, "dflash": GREEN}
    return colours.get(kind, PURPLE)


def _opacity(name: str) -> float:
    """Yardsticks and second baselines stand back."""
    return 0.55 if "-" in name else 1.0


def _cycle(count: int) -> list[str]:
    colours = [BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, GREY, _INK]
    return [colours[index % len(colours)] for index in range(count)]
