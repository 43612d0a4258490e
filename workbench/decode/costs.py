"""Measured pass times of this machine, which the choice of hypotheses weighs."""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from workbench.decode.engine import Engine
from workbench.decode.hypotheses import RoundCosts
from workbench.drafter.model import DrafterSpec

_CONTEXT_ROWS = 128
_WARM_PASSES = 3
_TIMED_PASSES = 9


def measure_pass_s(engine: Engine, num_rows: int, num_kept: int) -> float:
    """Median seconds of a causal pass of `num_rows` over a short context."""
    return _median_s(_repeatable_pass(engine, num_rows, num_kept))


def packed_pass(engine: Engine, spec: DrafterSpec, draft_length: int, num_blocks: int) -> Callable[[], None]:
    """A packed pass over a short context, to be run again and again."""
    num_kept = num_blocks * spec.block_size
    return _repeatable_pass(engine, draft_length + 1 + num_kept, num_kept)


def _repeatable_pass(engine: Engine, num_rows: int, num_kept: int) -> Callable[[], None]:
    cache = engine.new_cache()
    engine.forward([0] * _CONTEXT_ROWS, cache, 1)

    def run() -> None:
        logits_KV = engine.forward([0] * num_rows, cache, num_kept)
        logits_KV.argmax(-1).tolist()
        cache.truncate_to(_CONTEXT_ROWS)

    return run


def _median_s(run: Callable[[], None]) -> float:
    for _ in range(_WARM_PASSES):
        run()
    seconds = []
    for _ in range(_TIMED_PASSES):
        start_s = time.monotonic()
        run()
        seconds.append(time.monotonic() - start_s)
    return statistics.median(seconds)


@torch.inference_mode()
def measure_drafter_costs(
    engine: Engine,
    spec: DrafterSpec,
    draft_length: int,
    max_blocks: int,
    verify_s: float,
    share_at_a_miss: AbstractContextManager[None],
) -> RoundCosts:
    """Times a draft pass and packed passes with one and with all blocks; a pass's cost is linear in its blocks.

    Args:
        engine: The drafter's.
        spec: The drafter's.
        draft_length: Tokens of the draft that a packed pass caches.
        max_blocks: Most blocks of a packed pass.
        verify_s: Seconds of a verification.
        share_at_a_miss: Cores and threads of a draft pass, which the target waits for.
    """
    with share_at_a_miss:
        draft_s = measure_pass_s(engine, spec.block_size, spec.block_size)
    one_s = _median_s(packed_pass(engine, spec, draft_length, 1))
    most_s = _median_s(packed_pass(engine, spec, draft_length, max_blocks)) if max_blocks > 1 else one_s
    block_s = max(0.0, (most_s - one_s) / max(1, max_blocks - 1))
    return RoundCosts(
        verify_s=verify_s,
        draft_s=draft_s,
        packed_base_s=max(0.0, one_s - block_s),
        packed_block_s=block_s,
    )
