"""The tables of the results page, each from one JSON file of a run."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from workbench.console import render_duration
from workbench.validate.table import render_estimate, value_of


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def render_durations(seconds_by_stage: dict[str, float | None]) -> str:
    """How long a run and its stages took; what was interrupted has no known time."""
    known = {name: seconds for name, seconds in seconds_by_stage.items() if seconds is not None}
    stages = [
        f"{name} {render_duration(known[name]) if name in known else 'in several pieces'}" for name in seconds_by_stage
    ]
    total = render_duration(sum(known.values()))
    return f"{'' if len(known) == len(seconds_by_stage) else 'more than '}{total}: {', '.join(stages)}"


def render_suites(validation: dict[str, Any]) -> str:
    """Speedup over plain decoding and, in parentheses, acceptance length of every method by suite, and their means."""
    suites = list(next(iter(validation["methods"].values())))
    rows = []
    for method, cells in validation["methods"].items():
        pairs = [(value_of(cells[suite]["speedup"]), _acceptance_length(cells[suite])) for suite in suites]
        means = tuple(fmean(values) for values in zip(*pairs, strict=True))
        rows.append([method, *(f"{speedup:.2f}x ({length:.2f})" for speedup, length in [*pairs, means])])
    return render_table(["method", *suites, "mean"], rows)


def _acceptance_length(cell: dict[str, Any]) -> float:
    """Plain generation by another library has no rounds, and a token a pass."""
    return value_of(cell["acceptance_length"]) if "acceptance_length" in cell else 1.0


def render_rounds(validation: dict[str, Any], suite: str) -> str:
    """Where the milliseconds of a round go."""
    rows = [
        [
            method,
            *(f"{cells[suite]['round_ms'][name]['median']:.1f}" for name in ("round", "verify", "draft", "packed")),
            *(_render_anchor(cells[suite], name) for name in ("anchored", "masked")),
        ]
        for method, cells in validation["methods"].items()
        if cells[suite].get("round_ms")
    ]
    header = ["method", "round ms (median)", "verification", "draft pass", "packed pass"]
    return render_table([*header, "tokens, anchored blocks", "tokens, masked anchors"], rows) if rows else ""


def _render_anchor(cell: dict[str, Any], name: str) -> str:
    """Acceptance length of the rounds with such blocks."""
    entry = cell.get("acceptance_by_anchor", {}).get(name)
    return render_estimate(entry["acceptance_length"]) if entry else "-"


def _render_distillation(report: dict[str, Any]) -> str:
    final = report["final"]
    return (
        f"Distillation: {report['seconds'] / 60:.1f} minutes, {report['steps']} steps, {report['clean_tokens']:,} "
        f"tokens and {report['block_rows']:,} block rows; estimated acceptance length "
        f"{final['acceptance_anchored']:.2f} from anchored blocks, {final['acceptance_masked']:.2f} from masked ones."
    )


def _render_dflash(report: dict[str, Any]) -> str:
    return (
        f"DFlash drafter: trained for {report['seconds'] / 60:.1f} minutes, {report['steps']} steps; estimated "
        f"acceptance length {report['final']['acceptance_anchored']:.2f}."
    )


def _render_throughput(throughput: dict[str, Any]) -> str:
    own, plain = (throughput["row_us"][name]["median"] for name in ("distillation", "plain_and_target"))
    return (
        f"A distillation step takes {render_estimate(throughput['ratio'])} times as long as a plain next-token step "
        f"of the same model on as many rows and a forward of the target ({own:.0f} and {plain:.0f} µs a row)."
    )


def _render_ablation(ablation: dict[str, Any]) -> str:
    rows = [
        [
            entry["variant"],
            *(_render_mean(entry.get(name)) for name in ("acceptance_anchored", "acceptance_masked", "gain_anchored")),
        ]
        for entry in ablation["variants"]
    ]
    header = ["variant", "anchored blocks", "masked blocks", "gain over the recipe, anchored"]
    return (
        f"Ablation: estimated acceptance length after {ablation['minutes']:g} minutes of training, one key changed.\n\n"
        + render_table(header, rows)
    )


def _render_mean(estimate: dict[str, Any] | None) -> str:
    """Of a few seeds: one alone has no interval."""
    if estimate is None:
        return "-"
    return render_estimate(estimate) if estimate["ci95"] else f"{estimate['mean']:.2f}"


def _render_comparison(comparison: dict[str, Any]) -> str:
    rows = [
        [
            str(row["num_dropped"]),
            row["method"],
            f"{sum(row['evaluations']) / len(row['evaluations']):.0f}",
            render_estimate(row["retained"], 3),
            render_estimate(row["gain"], 3),
        ]
        for row in comparison["rows"]
    ]
    seeds = len(comparison["rows"][0]["sets"])
    return (
        f"Ways of choosing layers, before healing, mean over {seeds} seeds on blocks that no method saw.\n\n"
        + render_table(["dropped", "method", "sets looked at", "retained", "gain over one-shot"], rows)
    )


def _render_search(search: dict[str, Any]) -> str:
    if "results" not in search:  # the recipe drops nothing
        return ""
    rows = [
        [
            entry["name"],
            str(entry["heal_steps"]),
            f"{entry['acceptance_length']:.2f}",
            render_estimate(entry["retained"], 3),
            render_estimate(entry["retained_same_training"], 3) if entry["retained_same_training"] else "-",
            render_estimate(entry["speedup"], suffix="x"),
        ]
        for entry in search["results"]
    ]
    header = ["drafter", "healing steps", "acceptance length", "retained", "of equal training", "speedup"]
    return (
        f"Pruning, by real decoding of held-out prompts: {search['chosen']['reason']}.\n\n{render_table(header, rows)}"
    )


def _render_exactness(exactness: dict[str, Any]) -> str:
    rows = [
        [method, *(str(counts.get(status, 0)) for status in ("identical", "tie", "different"))]
        for method, counts in exactness["outputs"].items()
    ]
    return (
        f"Exactness: {exactness['num_prompts']} prompts, {exactness['num_tokens']:,} tokens in {exactness['dtype']} "
        f"against plain greedy decoding.\n\n{render_table(['method', 'identical', 'tie', 'different'], rows)}"
    )


def _render_overlap(overlap: dict[str, Any]) -> str:
    names = {
        "round_ms": "round, ms",
        "verify_ms": "verification, ms",
        "packed_ms": "packed pass, ms",
        "hit_round_ratio": "round over the longer of both, hits",
        "hit_rate": "hit rate",
        "verifier_bubble_ms": "verifier idle a round, ms",
    }
    rows = [[title, f"{overlap[name]:.2f}"] for name, title in names.items()]
    return f"Overlap of drafting and verification, from a trace.\n\n{render_table(['asynchronous decoding', ''], rows)}"


def _render_bench(bench: dict[str, Any]) -> str:
    rows = [
        [
            cell["name"],
            render_estimate(cell["tokens_per_second"], 0),
            render_estimate(cell["speedup"], suffix="x"),
            f"{cell['acceptance_length']['mean']:.2f}",
            f"{cell['round_ms']:.1f}",
            f"{cell['warm_up_s']:.0f}",
            "yes" if cell["identical"] else "no",
        ]
        for cell in bench["rows"]
    ]
    header = ["decoder", "tokens/s", "speedup, same engine", "acceptance length", "round ms", "warm-up s", "identical"]
    return (
        f"Engines, executors and draft lengths, end to end, {bench['num_prompts']} prompts, {bench['repetitions']} "
        f"repetitions.\n\n{render_table(header, rows)}"
    )


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "distill.json": _render_distillation,
    "throughput.json": _render_throughput,
    "ablation.json": _render_ablation,
    "dflash.json": _render_dflash,
    "search.json": _render_search,
    "comparison.json": _render_comparison,
    "exactness.json": _render_exactness,
    "overlap.json": _render_overlap,
    "bench-decode.json": _render_bench,
}
