"""What a drafter's passes cost on this machine, and the speedup that the speed model predicts from them.

A pass's time depends on how many layers there are, not on which: one measurement per number of layers serves all sets
of that size. Roles are timed one at a time, each on its share of the cores; that they share memory bandwidth shows in
the measured speedup only.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from workbench.decode.costs import measure_drafter_costs, measure_pass_s
from workbench.decode.decoder import context_length, split_cores
from workbench.decode.static_engine import build_engine
from workbench.drafter.layers import drop_layers
from workbench.drafter.model import load_drafter
from workbench.recipe import DecodeOptions
from workbench.targets import Target


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
    """Times the target's passes once, and the drafter's without 0, 1, ... of its layers.

    Args:
        target: Verifies.
        drafter_folder: The unpruned drafter.
        removable: Layers that are dropped one after another.
        options: Draft length, hypotheses, engine, threads.
    """
    target_cores, drafter_cores, target_threads, drafter_threads = split_cores(options)
    length, max_blocks = options.draft_length, max(1, options.max_hypotheses)
    engine = build_engine(options.engine, target.model, context_length(target) + 1)
    with _share(target_threads, target_cores):
        step_s = measure_pass_s(engine, 1, 1)
        verify_s = measure_pass_s(engine, length + 1, length + 1)
    drafter = load_drafter(drafter_folder, options.drafter_dtype, str(target.model.device))
    max_rows = context_length(target) + length + (max_blocks + 1) * drafter.spec.block_size
    times = {}
    for num_dropped in range(len(removable) + 1):
        smaller = drop_layers(drafter, removable[:num_dropped])
        engine = build_engine(options.engine, smaller.model, max_rows)
        with _share(drafter_threads, drafter_cores):
            costs = measure_drafter_costs(engine, smaller.spec, length, max_blocks, verify_s)
        times[num_dropped] = PassTimes(
            step_s=step_s,
            verify_s=verify_s,
            draft_s=costs.draft_s,
            packed_s=costs.packed_base_s + max_blocks * costs.packed_block_s,
        )
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


@contextlib.contextmanager
def _share(threads: int, cores: frozenset[int] | None) -> Iterator[None]:
    """Works with so many threads on these cores for a while."""
    old_threads = torch.get_num_threads()
    old_cores = os.sched_getaffinity(0) if cores else None
    torch.set_num_threads(threads)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        torch.set_num_threads(old_threads)
        if old_cores:
            os.sched_setaffinity(0, old_cores)
