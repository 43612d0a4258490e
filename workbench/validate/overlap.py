"""Records a trace of asynchronous decoding and says how well drafting hid behind verification."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from workbench.console import console
from workbench.decode import build_decoder
from workbench.decode.decoder import Round
from workbench.decode.trace import OverlapSummary, hit_round_lengths_ms, summarize_overlap, write_trace
from workbench.files import write_json
from workbench.recipe import Recipe
from workbench.targets import load_target
from workbench.validate.suites import load_suites

FILE_NAME = "overlap.json"


def record_trace(recipe: Recipe, drafter_folder: Path, path: Path, num_prompts: int = 8) -> OverlapSummary:
    """Decodes prompts of the first suite asynchronously, writes a Chrome trace to `path`.

    The summary is printed, and written to `overlap.json` beside the trace.
    """
    target = load_target(recipe.target)
    prompts = load_suites(recipe.validate.suites[:1], target, recipe.seed)[0].prompt_ids[:num_prompts]
    with build_decoder("asynchronous", target, drafter_folder, recipe.decode) as decoder:
        decoder.generate(prompts[0], recipe.validate.max_new_tokens)
        generations = [decoder.generate(prompt, recipe.validate.max_new_tokens).statistics.rounds for prompt in prompts]
    write_trace(path, generations)
    summary = summarize_overlap(generations)
    ratio = mean_hit_round_ratio(generations)
    write_json(path.with_name(FILE_NAME), {**dataclasses.asdict(summary), "hit_round_ratio": ratio})
    console.print(render_summary(summary, ratio))
    console.print(f"wrote {path}: open it in https://ui.perfetto.dev")
    return summary


def mean_hit_round_ratio(generations: Sequence[Sequence[Round]]) -> float:
    """Mean over hits of a round's time over that of the longer of its two passes; NaN without hits."""
    ratios = [length / floor for length, floor in hit_round_lengths_ms(generations) if floor]
    return sum(ratios) / len(ratios) if ratios else float("nan")


def render_summary(summary: OverlapSummary, ratio: float) -> Table:
    """Two columns: what, and how much."""
    table = Table(title="Where a round's time goes", show_header=False)
    by_accepted = ", ".join(f"{a}: {rate:.2f}" for a, rate in summary.hit_rate_by_accepted.items())
    rows = {
        "round": f"{summary.round_ms:.2f} ms",
        "verification": f"{summary.verify_ms:.2f} ms",
        "packed pass": f"{summary.packed_ms:.2f} ms",
        "draft pass (misses)": f"{summary.draft_ms:.2f} ms",
        "round over the longer pass, hits": f"{ratio:.2f}",
        "overlap of the shorter role": f"{summary.overlap_fraction:.0%}",
        "verifier bubble": f"{summary.verifier_bubble_ms:.2f} ms",
        "lateness of the packed pass": f"{summary.packed_lateness_ms:.2f} ms",
        "hit rate": f"{summary.hit_rate:.2f}",
        "hit rate by accepted tokens": by_accepted,
        "rounds by outcome": ", ".join(f"{name} {count}" for name, count in sorted(summary.outcomes.items())),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table
