"""Delay injection: how long the drafter may take before a round gets longer.

The drafter's passes are slowed by an artificial delay. While drafting hides behind the verification, the time of a
round that began with a hit stays flat; from there on it rises one for one.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from workbench.console import console, progress
from workbench.decode import build_decoder
from workbench.decode.trace import hit_round_lengths_ms, summarize_overlap
from workbench.files import whole_file, write_json
from workbench.recipe import Recipe
from workbench.targets import load_target
from workbench.validate.machine import describe_hardware, describe_versions
from workbench.validate.suites import load_suites

DELAYS_MS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)


def measure_delay(
    recipe: Recipe, drafter_folder: Path, folder: Path, delays_ms: Sequence[float] = DELAYS_MS, num_prompts: int = 8
) -> Path:
    """Measures round times under each delay; writes `delay-injection.json` and `.svg` into `folder`."""
    target = load_target(recipe.target)
    prompts = load_suites(recipe.validate.suites[:1], target, recipe.seed)[0].prompt_ids[:num_prompts]
    points: list[dict[str, Any]] = []
    with progress("delay injection", len(delays_ms) * len(prompts)) as advance:
        for delay_ms in delays_ms:
            with build_decoder(
                "asynchronous", target, drafter_folder, recipe.decode, drafter_delay_s=delay_ms / 1e3
            ) as decoder:
                decoder.generate(prompts[0], recipe.validate.max_new_tokens)
                generations = []
                for prompt in prompts:
                    generation = decoder.generate(prompt, recipe.validate.max_new_tokens)
                    generations.append(generation.statistics.rounds)
                    advance(1, "")
            lengths = hit_round_lengths_ms(generations)
            summary = summarize_overlap(generations)
            points.append(
                {
                    "delay_ms": delay_ms,
                    "round_ms": statistics.median(length for length, _ in lengths),
                    "verify_ms": summary.verify_ms,
                    "packed_ms": summary.packed_ms,
                    "num_hit_rounds": len(lengths),
                }
            )
    path = folder / "delay-injection.json"
    write_json(path, {"points": points, "machine": describe_hardware(), "versions": describe_versions()})
    _plot(points, folder / "delay-injection.svg")
    console.print(f"wrote {path} and its figure")
    return path


def _plot(points: Sequence[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    delays = [point["delay_ms"] for point in points]
    verify_ms = statistics.median(point["verify_ms"] for point in points)
    busy = [point["packed_ms"] + point["delay_ms"] for point in points]
    axes.plot(delays, [point["round_ms"] for point in points], marker="o", label="measured round (hits)")
    axes.axhline(verify_ms, linestyle="--", color="tab:green", label="verification")
    axes.plot(delays, busy, linestyle=":", color="tab:red", label="packed pass + delay")
    axes.set_xlabel("artificial delay of the drafter (ms)")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend()
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="svg")
