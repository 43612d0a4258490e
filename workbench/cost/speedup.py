"""What a drafter would gain: the speed model of decoding, with pass times from a roofline and assumed acceptance.

    synchronous round    verify + draft
    asynchronous round   max(verify, packed) + (1 - p_hit) * draft

On a device of its own the packed pass overlaps the verification; on a shared one both read the same memory, so their
times add up. Hypotheses are those that the decoder itself would choose under these times (`decode/hypotheses.py`).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.cost.devices import Device
from workbench.cost.passes import Pass, pass_s
from workbench.cost.shapes import ModelShape
from workbench.decode.hypotheses import Outcomes, RoundCosts, expected_round, outcome_table, select_hypotheses

MASKED_LENGTH_SHARE = 0.9
"""Acceptance length from a masked anchor over that from a known one (quickstart: 5.39 of 6.05)."""
REJECTED_RANKS = (0.43, 0.18, 0.07, 0.05)
"""P(the bonus after a rejection is the drafter's candidate of this rank), measured on the quickstart drafter."""
FULL_RANKS = (0.79, 0.10, 0.04, 0.04)
"""The same after a fully accepted draft."""
CERTAIN, HESITANT = 0.98, 0.6
"""P(accepted) of a draft token that the drafter is sure of, and of one that it is not: which of both a token is, the
decoder knows in advance, and puts its hypotheses where a draft may break off. Chosen so that hits come out as measured
on the quickstart (0.89 with 3.3 hypotheses a round)."""
_NUM_PATTERNS = 32


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What the plan assumes of decoding."""

    draft_length: int
    block_size: int
    max_hypotheses: int
    acceptance_length: float
    """Tokens a round from a known anchor, at this draft length."""
    context_tokens: int
    """Mean length of what is cached."""
    target_value_bytes: int = 2
    drafter_value_bytes: int = 2


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """A drafter beside its target; times in seconds, speedups over plain decoding."""

    drafter: str
    num_layers: int
    draft_length: int
    acceptance_length: float
    """From a known anchor."""
    verify_s: float
    draft_s: float
    packed_s: float
    """With the chosen hypotheses."""
    draft_share: float
    """delta: draft over verify."""
    num_hypotheses: float
    """Mean."""
    hit_probability: float
    needed_hit_probability: float | None
    """Below it, asynchrony on a device of its own loses to taking turns; above 1: it always does; None: no packed pass
    is worth its time."""
    synchronous: float
    asynchronous: float
    """On a device of its own."""
    asynchronous_shared: float
    """On the target's device."""
    is_hidden: bool
    """The packed pass is no longer than the verification."""


def expected_length(acceptance: float, draft_length: int) -> float:
    """Tokens a round if every draft token is accepted with one probability."""
    return sum(acceptance**count for count in range(draft_length + 1))


def acceptance_of(length: float, draft_length: int) -> float:
    """The probability under which `expected_length` is `length`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_length(middle, draft_length) < length else (low, middle)
    return (low + high) / 2


def estimate_speedup(target: ModelShape, drafter: ModelShape, decoding: Decoding, device: Device) -> Speedup:
    """Speedups of one drafter, with at most the hypotheses that pay.

    The cost of a packed pass bends where arithmetic overtakes reading, and the choice of hypotheses takes it for
    linear: so the whole budget is compared with as many as come for free.
    """
    budgets = {decoding.max_hypotheses, max(1, free_hypotheses(drafter, decoding, device))}
    estimates = [
        _estimate_speedup(target, drafter, replace(decoding, max_hypotheses=budget), device)
        for budget in sorted(budgets)
    ]
    return max(estimates, key=lambda estimate: estimate.asynchronous)


def free_hypotheses(drafter: ModelShape, decoding: Decoding, device: Device) -> int:
    """Most hypotheses, within the budget, that make a packed pass hardly longer than one does."""

    def packed_s(num_blocks: int) -> float:
        rows = decoding.draft_length + 1 + num_blocks * decoding.block_size
        work = Pass(rows, decoding.context_tokens, num_blocks * decoding.block_size)
        return pass_s(drafter, work, device, decoding.drafter_value_bytes)

    free = [count for count in range(1, decoding.max_hypotheses + 1) if packed_s(count) <= 1.02 * packed_s(1)]
    return free[-1]


def _estimate_speedup(target: ModelShape, drafter: ModelShape, decoding: Decoding, device: Device) -> Speedup:
    costs = round_costs(target, drafter, decoding, device)
    plain_s = pass_s(target, Pass(1, decoding.context_tokens, 1), device, decoding.target_value_bytes)
    drafts = expected_drafts(decoding.acceptance_length, decoding.draft_length)
    own = _mean_round(drafts, costs, decoding.max_hypotheses)
    # Side by side on one device: what the packed pass takes is added to the verification.
    in_turn = replace(costs, packed_base_s=costs.verify_s + costs.packed_base_s)
    shared = _mean_round(drafts, in_turn, decoding.max_hypotheses)
    packed_s = costs.packed_base_s + own.num_blocks * costs.packed_block_s if own.num_blocks else 0.0
    return Speedup(
        drafter=drafter.name,
        num_layers=drafter.num_layers,
        draft_length=decoding.draft_length,
        acceptance_length=decoding.acceptance_length,
        verify_s=costs.verify_s,
        draft_s=costs.draft_s,
        packed_s=packed_s,
        draft_share=costs.draft_s / costs.verify_s,
        num_hypotheses=own.num_blocks,
        hit_probability=own.hit_probability,
        needed_hit_probability=max(0.0, packed_s - costs.verify_s) / costs.draft_s if own.num_blocks else None,
        synchronous=plain_s * decoding.acceptance_length / (costs.verify_s + costs.draft_s),
        asynchronous=plain_s * own.tokens / own.seconds,
        asynchronous_shared=plain_s * shared.tokens / shared.seconds,
        is_hidden=own.num_blocks > 0 and packed_s <= costs.verify_s,
    )


def round_costs(target: ModelShape, drafter: ModelShape, decoding: Decoding, device: Device) -> RoundCosts:
    """Pass times of a round."""
    clean, block = decoding.draft_length + 1, decoding.block_size

    def drafter_s(num_clean: int, num_blocks: int) -> float:
        work = Pass(num_clean + num_blocks * block, decoding.context_tokens, num_blocks * block)
        return pass_s(drafter, work, device, decoding.drafter_value_bytes)

    verify = Pass(clean, decoding.context_tokens, clean)
    one_s, most_s = drafter_s(clean, 1), drafter_s(clean, max(2, decoding.max_hypotheses))
    block_s = (most_s - one_s) / (max(2, decoding.max_hypotheses) - 1)
    return RoundCosts(
        verify_s=pass_s(target, verify, device, decoding.target_value_bytes),
        draft_s=drafter_s(0, 1),
        packed_base_s=one_s - block_s,
        packed_block_s=block_s,
        anchored_length=decoding.acceptance_length,
        masked_length=max(1.0, MASKED_LENGTH_SHARE * decoding.acceptance_length),
    )


def expected_drafts(length: float, draft_length: int) -> list[list[Outcomes]]:
    """Outcomes of some drafts whose tokens are certain or hesitant by chance, so that the mean length comes out."""
    acceptance = acceptance_of(length, draft_length)
    hesitant, certain = min(HESITANT, acceptance), max(CERTAIN, acceptance)
    share = (certain - acceptance) / (certain - hesitant)
    ranks = list(range(len(REJECTED_RANKS)))
    rng = random.Random(0)
    return [
        outcome_table(
            [hesitant if rng.random() < share else certain for _ in range(draft_length)],
            [ranks] * (draft_length + 1),
            [*[list(REJECTED_RANKS)] * draft_length, list(FULL_RANKS)],
            [0] * draft_length,
            frozenset(),
        )
        for _ in range(_NUM_PATTERNS)
    ]


def deepest_hidden(target: ModelShape, drafter: ModelShape, decoding: Decoding, device: Device) -> int:
    """Most layers with which a packed pass of all hypotheses hides under the verification; 0: none."""
    hidden = 0
    for num_layers in range(1, drafter.num_layers + 1):
        costs = round_costs(target, drafter.with_layers(num_layers), decoding, device)
        if costs.packed_base_s + decoding.max_hypotheses * costs.packed_block_s <= costs.verify_s:
            hidden = num_layers
    return hidden


@dataclass(frozen=True)
class _MeanRound:
    hit_probability: float
    tokens: float
    seconds: float
    num_blocks: float


def _mean_round(drafts: Sequence[list[Outcomes]], costs: RoundCosts, max_hypotheses: int) -> _MeanRound:
    """A round under the decoder's own choice of hypotheses, averaged over drafts."""
    hits = tokens = seconds = blocks = 0.0
    for outcomes in drafts:
        chosen = select_hypotheses(outcomes, costs, max_hypotheses)
        round_tokens, round_s = expected_round(chosen, outcomes, costs)
        hits += 1 - (round_s - costs.round_s(len(chosen), 1.0)) / costs.draft_s
        tokens, seconds, blocks = tokens + round_tokens, seconds + round_s, blocks + len(chosen)
    count = len(drafts)
    return _MeanRound(hits / count, tokens / count, seconds / count, blocks / count)
