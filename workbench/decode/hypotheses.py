"""Which outcomes of a verification are drafted for in advance.

An outcome is `(a, b)`: `a` draft tokens accepted, bonus `b`. An *anchored* hypothesis names both; a *masked-anchor*
hypothesis names `a` only and covers every bonus, at a lower expected acceptance length. The choice maximises expected
emitted tokens per second and depends only on what is known before the outcome.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

_FOLLOWING = 0.1
"""Share of an expected time that each observed one replaces: a machine's speed and the context change over a run."""

_LEARNING = 0.3
"""Share of a new slowdown that each comparison shows: they are rare."""
_COMPARED_EVERY, _FIRST_COMPARED = 32, 8
"""Rounds of a sequence: only verifications with and without a packed pass beside them show the slowdown."""


@dataclass(frozen=True)
class Hypothesis:
    """A guessed outcome; `bonus` None is the masked anchor."""

    num_accepted: int
    bonus: int | None


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """Measured seconds that the choice weighs, and acceptance lengths it expects."""

    verify_s: float
    """One verification that nothing runs beside, on all cores."""
    draft_s: float
    """One draft pass at a miss."""
    packed_base_s: float
    """A packed pass without blocks."""
    packed_block_s: float
    """What each block adds."""
    slowdown: float = 0.0
    """By what share a packed pass beside it lengthens a verification, which then has the target's share of the cores;
    caches, memory and, where two cores are threads of one, execution units are shared as well."""
    anchored_length: float = 7.0
    """Expected tokens of the next round from a block with a known anchor."""
    masked_length: float = 6.5
    """Expected tokens of the next round from a block with a masked anchor."""

    def round_tokens(self, hit_masked: float) -> float:
        """Expected tokens of the next round if its block has a masked anchor with that probability."""
        return self.anchored_length - hit_masked * (self.anchored_length - self.masked_length)

    def round_s(self, num_blocks: int, hit_probability: float) -> float:
        """Expected length of a round: overlapped passes, then a draft pass where no hypothesis came true."""
        packed_s = self.packed_base_s + num_blocks * self.packed_block_s if num_blocks else 0.0
        return max(self.verification_s(num_blocks), packed_s) + (1 - hit_probability) * self.draft_s

    def verification_s(self, num_blocks: int) -> float:
        """A verification beside a packed pass with that many blocks, or with all cores to itself."""
        return (1 + self.slowdown) * self.verify_s if num_blocks else self.verify_s

    def after_verification(self, seconds: float, num_blocks: int, is_change: bool) -> "RoundCosts":
        """The same, having seen a verification beside a packed pass with that many blocks (0: there was none).

        What changes from one verification to the next of its kind is the machine's speed or the context, and holds for
        both kinds and for draft passes. Where the last one was of the other kind, the two together show the slowdown.

        Args:
            seconds: That it took.
            num_blocks: Of the packed pass beside it.
            is_change: Whether one of the last two verifications had a packed pass beside it and the other had none.
        """
        deviation = min(1.0, seconds / self.verification_s(num_blocks) - 1)
        if not is_change:
            scale = 1 + _FOLLOWING * deviation
            return replace(self, verify_s=scale * self.verify_s, draft_s=scale * self.draft_s)
        scale = 1 + _LEARNING * deviation
        if num_blocks:
            return replace(self, slowdown=max(0.0, scale * (1 + self.slowdown) - 1))
        return replace(self, verify_s=scale * self.verify_s, slowdown=max(0.0, (1 + self.slowdown) / scale - 1))

    def is_comparison_due(self, num_choices: int) -> bool:
        """Whether, after that many choices in a sequence, the other thing is done once: packed pass or none."""
        return num_choices % _COMPARED_EVERY == _FIRST_COMPARED

    def after_draft(self, seconds: float) -> "RoundCosts":
        """The same, having seen a draft pass: it caches what was committed, too, which one at the start does not."""
        return replace(self, draft_s=self.draft_s + _FOLLOWING * (seconds - self.draft_s))

    def after_packed(self, num_blocks: int, seconds: float) -> "RoundCosts":
        """The same, having seen a packed pass."""
        expected_s = self.packed_base_s + num_blocks * self.packed_block_s
        if not expected_s:
            return self
        scale = 1 + _FOLLOWING * (seconds / expected_s - 1)
        return replace(
            self,
            packed_base_s=scale * self.packed_base_s,
            packed_block_s=scale * self.packed_block_s,
        )


@dataclass(frozen=True)
class Outcomes:
    """Probabilities of the outcomes with one `a`: of the `a` itself, and of the likeliest bonus tokens given it."""

    num_accepted: int
    probability: float
    bonus_ids: Sequence[int]
    bonus_probs: Sequence[float]


def outcome_table(
    acceptance_probs: Sequence[float],
    bonus_ids: Sequence[Sequence[int]],
    bonus_probs: Sequence[Sequence[float]],
    draft: Sequence[int],
    stop_ids: frozenset[int],
) -> list[Outcomes]:
    """Disjoint outcomes of a verification that leave something to draft for.

    Args:
        acceptance_probs: For each draft token, P(accepted | all before it accepted).
        bonus_ids: For each `a` in 0..draft length, candidates for the bonus, likeliest first, the rejected draft
            token excluded.
        bonus_probs: P(bonus | a) of each candidate.
        draft: The draft under verification.
        stop_ids: A bonus or an accepted token among these ends the output: nothing follows.
    """
    outcomes, survival = [], 1.0
    for a in range(len(draft) + 1):
        rejection = 1 - acceptance_probs[a] if a < len(draft) else 1.0
        kept = [(i, p) for i, p in zip(bonus_ids[a], bonus_probs[a], strict=True) if i not in stop_ids]
        outcomes.append(Outcomes(a, survival * rejection, [i for i, _ in kept], [p for _, p in kept]))
        if a == len(draft) or draft[a] in stop_ids:
            break
        survival *= acceptance_probs[a]
    return outcomes


def select_hypotheses(outcomes: Sequence[Outcomes], costs: RoundCosts, max_blocks: int) -> list[Hypothesis]:
    """The set of at most `max_blocks` hypotheses with the highest expected tokens per second.

    For a rate `r` the value of a set is (expected tokens) - r * (expected seconds); the best rate is the one at which
    the best set is worth 0 (Dinkelbach 1967). For a fixed rate and number of blocks, every `a` is a small menu (no
    block, the likeliest bonuses, those plus the masked anchor), and menus combine by dynamic programming, exactly.
    """
    if max_blocks == 0 or not outcomes:
        return []
    menus = [_menu(outcome, max_blocks) for outcome in outcomes]
    rate = costs.anchored_length / costs.round_s(0, 0.0)
    for _ in range(8):
        best = max(_best_sets(menus, costs, max_blocks, rate), key=functools.partial(_gain, costs=costs, rate=rate))
        if _gain(best, costs, rate) <= 1e-9 * costs.anchored_length:
            break
        rate = costs.round_tokens(best.hit_masked) / best.round_s(costs)
    return best.hypotheses


def expected_round(
    hypotheses: Sequence[Hypothesis], outcomes: Sequence[Outcomes], costs: RoundCosts
) -> tuple[float, float]:
    """Expected (tokens, seconds) of the next round under a set of hypotheses; the objective, written plainly."""
    hit_anchored = hit_masked = 0.0
    for outcome in outcomes:
        named = {h.bonus for h in hypotheses if h.num_accepted == outcome.num_accepted}
        anchored = sum(p for i, p in zip(outcome.bonus_ids, outcome.bonus_probs, strict=True) if i in named)
        hit_anchored += outcome.probability * anchored
        if None in named:
            hit_masked += outcome.probability * (1 - anchored)
    return costs.round_tokens(hit_masked), costs.round_s(len(hypotheses), hit_anchored + hit_masked)


class _Choice(NamedTuple):
    """Hypotheses and the probabilities that one with a known anchor, or only one with a masked anchor, comes true."""

    hit_anchored: float
    hit_masked: float
    hypotheses: list[Hypothesis]

    def round_s(self, costs: RoundCosts) -> float:
        return costs.round_s(len(self.hypotheses), self.hit_anchored + self.hit_masked)


def _gain(choice: _Choice, costs: RoundCosts, rate: float) -> float:
    """Expected tokens of the next round less those that its expected time is worth."""
    return costs.round_tokens(choice.hit_masked) - rate * choice.round_s(costs)


def _best_sets(
    menus: Sequence[Sequence[Sequence[_Choice]]], costs: RoundCosts, max_blocks: int, rate: float
) -> list[_Choice]:
    """For at most 0, 1, ... blocks the set that saves the most draft passes, each worth its time at `rate`.

    Runs between two verifications, so it works on plain numbers: sets are put together when the best are known.
    """
    saved = rate * costs.draft_s
    saved_masked = saved - (costs.anchored_length - costs.masked_length)
    values = [0.0] * (max_blocks + 1)
    parts: list[tuple[_Choice, ...]] = [()] * (max_blocks + 1)
    for menu in menus:
        best_of_size = []
        for options in menu:
            worth = [option.hit_anchored * saved + option.hit_masked * saved_masked for option in options]
            most = max(worth)
            best_of_size.append((most, options[worth.index(most)]))
        for blocks in range(max_blocks, 0, -1):
            for size, (value, option) in enumerate(best_of_size[:blocks], start=1):
                if values[blocks - size] + value > values[blocks]:
                    values[blocks] = values[blocks - size] + value
                    parts[blocks] = (*parts[blocks - size], option)
    return [
        _Choice(
            sum(part.hit_anchored for part in chosen),
            sum(part.hit_masked for part in chosen),
            [hypothesis for part in chosen for hypothesis in part.hypotheses],
        )
        for chosen in parts
    ]


def _menu(outcome: Outcomes, max_blocks: int) -> list[list[_Choice]]:
    """For 1, 2, ... blocks on one `a` what is worth considering: the likeliest bonuses, with or without the mask."""
    anchored = [Hypothesis(outcome.num_accepted, i) for i in outcome.bonus_ids]
    masked = Hypothesis(outcome.num_accepted, None)
    covered = [0.0, *itertools.accumulate(outcome.bonus_probs)]
    menu = []
    for size in range(1, min(max_blocks, len(anchored) + 1) + 1):
        fewer = covered[size - 1]
        options = [
            _Choice(outcome.probability * fewer, outcome.probability * (1 - fewer), [*anchored[: size - 1], masked])
        ]
        if size <= len(anchored):
            options.append(_Choice(outcome.probability * covered[size], 0.0, anchored[:size]))
        menu.append(options)
    return menu
