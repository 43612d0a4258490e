"""What a drafter's passes cost on this machine, and the speedup that the speed model predicts from them.

A pass's time depends on how many layers there are, not on which, and every layer adds the same: the drafter with all
its layers and the smallest one are timed, in turns, and the others lie on the line between them. Passes are timed one
at a time, each on its share of the cores; that roles slow each other shows in the measured speedup only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.decode.cores import ShareOfMachine, split_cores, whole_machine
from workbench.decode.costs import measure_drafter_costs, measure_pass_s
from workbench.decode.decoder import context_length
from workbench.decode.static_engine import build_engine
from workbench.drafter.layers import drop_layers
from workbench.drafter.model import load_drafter
from workbench.recipe import DecodeOptions
from workbench.targets import Target

_TURNS = 3
"""Medians of so many turns forgive a moment in which the machine was busy."""


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """Median seconds of the passes of a round."""

    step_s: float
    """One token of the target alone: a round of plain decoding."""
    verify_s: float
    """Verification of a draft."""
    draft_s: float
    """Draft pass of one block."""
    packed_s: float
    """Packed pass with as many hypotheses as the recipe allows."""


def measure_pass_times(
    target: Target, drafter_folder: Path, removable: Sequence[int], options: DecodeOptions
) -> dict[int, PassTimes]:
    """Times the target's passes, and the drafter's without 0, 1, ... of its layers.

    Args:
        target: Verifies.
        drafter_folder: The unpruned drafter.
        removable: Layers of which the first ones are dropped.
        options: Draft length, hypotheses, engine, threads.
    """
    target_cores, drafter_cores, target_threads, drafter_threads = split_cores(options)
    share_at_a_miss = whole_machine(options)
    length, max_blocks = options.draft_length, max(1, options.max_hypotheses)
    target_engine = build_engine(options.engine, target.model, context_length(target) + 1)
    whole = load_drafter(drafter_folder, options.drafter_dtype, str(target.model.device))
    max_rows = context_length(target) + length + (max_blocks + 1) * whole.spec.block_size
    by_size = {0: whole, len(removable): drop_layers(whole, removable)}
    engines = {size: build_engine(options.engine, drafter.model, max_rows) for size, drafter in by_size.items()}
    target_s: list[tuple[float, float]] = []
    drafter_s: dict[int, list[tuple[float, float]]] = {size: [] for size in engines}
    for _ in range(_TURNS):
        with ShareOfMachine(target_threads, target_cores):
            step_s = measure_pass_s(target_engine, 1, 1)
            verify_s = measure_pass_s(target_engine, length + 1, length + 1)
        target_s.append((step_s, verify_s))
        for size, engine in engines.items():
            with ShareOfMachine(drafter_threads, drafter_cores):
                costs = measure_drafter_costs(engine, whole.spec, length, max_blocks, verify_s, share_at_a_miss)
            drafter_s[size].append((costs.draft_s, costs.packed_base_s + max_blocks * costs.packed_block_s))
    step_s, verify_s = np.median(target_s, axis=0).tolist()
    most, least = (np.median(drafter_s[size], axis=0) for size in (0, len(removable)))
    times = {}
    for num_dropped in range(len(removable) + 1):
        draft_s, packed_s = (most + (least - most) * num_dropped / max(1, len(removable))).tolist()
        times[num_dropped] = PassTimes(step_s=step_s, verify_s=verify_s, draft_s=draft_s, packed_s=packed_s)
    return times


def predicted_speedup(acceptance_length: float, times: PassTimes, hit_share: float, overhead_s: float) -> float:
    """Asynchronous tokens per second over plain decoding, by the speed model.

    Args:
        acceptance_length: Mean tokens per round, the bonus included.
        times: Of the passes.
        hit_share: Share of rounds whose draft was made ahead.
        overhead_s: What a round costs beside its passes.
    """
    round_s = max(times.verify_s, times.packed_s) + overhead_s + (1 - hit_share) * times.draft_s
    return acceptance_length * times.step_s / round_s
