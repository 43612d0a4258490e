"""Where the time of a round goes: Chrome-trace files (open in Perfetto) and a summary of how well passes overlap."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.decode.decoder import Round
from workbench.files import write_json

_ROLES = {"target": 1, "drafter": 2}


@dataclass(frozen=True, kw_only=True)
class OverlapSummary:
    """Means over the rounds of one or more generations."""

    overlap_fraction: float
    """Time in which both roles worked, over the shorter role's working time."""
    verifier_bubble_ms: float
    """Per round: from the end of a verification to the start of the next."""
    packed_lateness_ms: float
    """Per round: by how much the packed pass outlasted the verification beside it."""
    round_ms: float
    verify_ms: float
    packed_ms: float
    """Packed pass, in the rounds that had one."""
    draft_ms: float
    """Draft pass, in the rounds that had one."""
    hit_rate: float
    """Hits over rounds for which something was drafted ahead."""
    hit_rate_by_accepted: dict[int, float]
    """Hit rate by the number of accepted tokens that the hypotheses had to guess."""
    outcomes: dict[str, int]
    """Rounds by outcome: hits, and misses by cause."""


def summarize_overlap(generations: Sequence[Sequence[Round]]) -> OverlapSummary:
    """Summary of the rounds of several generations."""
    rounds = [r for generation in generations for r in generation]
    both_s = verify_total_s = packed_total_s = bubble_s = late_s = 0.0
    tried: Counter[int] = Counter()
    hits: Counter[int] = Counter()
    num_pairs = 0
    for generation in generations:
        for previous, current in itertools.pairwise(generation):
            num_pairs += 1
            verify = _span(previous, "verify")
            next_verify = _span(current, "verify")
            packed = _span(current, "packed")
            if verify and next_verify:
                bubble_s += next_verify[0] - verify[1]
            if verify and packed:
                both_s += max(0.0, min(verify[1], packed[1]) - max(verify[0], packed[0]))
                verify_total_s += verify[1] - verify[0]
                packed_total_s += packed[1] - packed[0]
                late_s += max(0.0, packed[1] - verify[1])
            if current.num_hypotheses:
                tried[previous.num_accepted] += 1
                hits[previous.num_accepted] += current.outcome.startswith("hit")
    shorter_s = min(verify_total_s, packed_total_s)
    return OverlapSummary(
        overlap_fraction=both_s / shorter_s if shorter_s else 0.0,
        verifier_bubble_ms=1e3 * bubble_s / max(1, num_pairs),
        packed_lateness_ms=1e3 * late_s / max(1, num_pairs),
        round_ms=1e3 * _mean([r.round_s for r in rounds]),
        verify_ms=1e3 * _mean([r.verify_s for r in rounds]),
        packed_ms=1e3 * _mean([r.packed_s for r in rounds if r.packed_s]),
        draft_ms=1e3 * _mean([r.draft_s for r in rounds if r.draft_s]),
        hit_rate=sum(hits.values()) / max(1, sum(tried.values())),
        hit_rate_by_accepted={a: hits[a] / tried[a] for a in sorted(tried)},
        outcomes=dict(Counter(r.outcome for r in rounds)),
    )


def write_trace(path: Path, generations: Sequence[Sequence[Round]]) -> None:
    """Writes Chrome-trace JSON: a process per role, a span per pass, an arrow from packed pass to verification."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 1, "args": {"name": role}}
        for role, pid in _ROLES.items()
    ]
    starts = [span[2] for generation in generations for r in generation for span in r.spans]
    origin_s = min(starts, default=0.0)
    for generation_index, generation in enumerate(generations):
        for index, current in enumerate(generation):
            details = {
                "generation": generation_index,
                "round": index,
                "outcome": current.outcome,
                "hypotheses": current.num_hypotheses,
                "draft_length": current.draft_length,
                "accepted": current.num_accepted,
            }
            for role, name, start_s, stop_s in current.spans:
                events.append(
                    {
                        "ph": "X",
                        "name": name,
                        "pid": _ROLES[role],
                        "tid": 1,
                        "ts": 1e6 * (start_s - origin_s),
                        "dur": 1e6 * (stop_s - start_s),
                        "args": details,
                    }
                )
            packed, verify = _span(current, "packed"), _span(current, "verify")
            if packed and verify and current.outcome.startswith("hit"):
                flow = {"name": current.outcome, "cat": "draft", "id": len(events), "tid": 1}
                events.append({**flow, "ph": "s", "pid": _ROLES["drafter"], "ts": 1e6 * (packed[1] - origin_s)})
                events.append(
                    {**flow, "ph": "f", "bp": "e", "pid": _ROLES["target"], "ts": 1e6 * (verify[0] - origin_s)}
                )
    write_json(path, {"traceEvents": events, "displayTimeUnit": "ms"})


def hit_round_lengths_ms(generations: Sequence[Sequence[Round]]) -> list[tuple[float, float]]:
    """For every round that began with a hit: (round, the longer of its verification and packed pass), milliseconds.

    The packed pass of a round is reported with the draft of the next one.
    """
    pairs = []
    for generation in generations:
        for current, following in itertools.pairwise(generation):
            if current.outcome.startswith("hit"):
                pairs.append((1e3 * current.round_s, 1e3 * max(current.verify_s, following.packed_s)))
    return pairs


def _span(current: Round, name: str) -> tuple[float, float] | None:
    for _, span_name, start_s, stop_s in current.spans:
        if span_name == name:
            return start_s, stop_s
    return None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
