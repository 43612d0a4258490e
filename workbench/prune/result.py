"""What a search leaves behind: `search.json`, everything that was tried and why one candidate won."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.drafter.model import DrafterSpec
from workbench.prune.encoding import LayerSet
from workbench.prune.finalists import Result
from workbench.prune.healing import Candidate
from workbench.prune.latency import PassTimes, predicted_speedup
from workbench.prune.ranking import Ranking
from workbench.prune.scoring import drafter_fingerprint
from workbench.recipe import Recipe
from workbench.validate.statistics import Estimate


@dataclass(frozen=True)
class Estimated:
    """A healed candidate and its estimates on the precise rung."""

    candidate: Candidate
    lengths: dict[str, float]
    """Acceptance lengths: all blocks, anchored, masked."""
    retained: Estimate


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """Everything that a search found out."""

    recipe: Recipe
    spec: DrafterSpec
    """Of the unpruned drafter."""
    num_blocks: int
    unpruned_lengths: dict[str, float]
    rankings: list[Ranking]
    healed: list[Estimated]
    times: dict[float, dict[int, PassTimes]]
    """By width and number of dropped layers."""
    results: list[Result]
    chosen: Result
    reason: str
    settings: dict[str, Any] | None
    """Decoding settings of the winner; see `settings.tune_settings`."""
    seconds: dict[str, float]
    """By phase, interruptions apart; `total` with what interrupted searches spent."""


def build_result(record: SearchRecord) -> dict[str, Any]:
    """`search.json` as plain values."""
    points = _points(record)
    return {
        "recipe": record.recipe.name,
        "prune": asdict(record.recipe.prune),
        "unpruned": {
            "kept_layers": record.spec.kept_layers,
            "parent": record.spec.parent,
            "acceptance_length": record.unpruned_lengths,
            "num_blocks": record.num_blocks,
        },
        "studies": [ranking.as_dict() for ranking in record.rankings],
        "pass_times": [
            {"width": width, "num_dropped": num_dropped, **asdict(pass_times)}
            for width, by_number in record.times.items()
            for num_dropped, pass_times in by_number.items()
        ],
        "healed": [
            {
                "name": entry.candidate.name,
                "dropped": list(entry.candidate.dropped),
                "width": entry.candidate.width,
                "heal_steps": entry.candidate.heal_steps,
                "acceptance_length": entry.lengths,
                "retained": entry.retained.as_dict(),
            }
            for entry in record.healed
        ],
        "points": points,
        "front": pareto_front(points),
        "results": [result.as_dict() for result in record.results],
        "chosen": {
            "name": record.chosen.candidate.name,
            "dropped": list(record.chosen.candidate.dropped),
            "width": record.chosen.candidate.width,
            "kept_layers": [i for i in record.spec.kept_layers if i not in record.chosen.candidate.dropped],
            "reason": record.reason,
            "lineage": _lineage(record),
        },
        "decode": record.settings,
        "seconds": record.seconds,
        "workers": record.recipe.prune.workers,
    }


def pareto_front(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points that no other beats: higher acceptance at no more latency, or less latency at no less acceptance."""

    def beats(one: dict[str, Any], other: dict[str, Any]) -> bool:
        no_worse = one["acceptance_length"] >= other["acceptance_length"] and one["packed_s"] <= other["packed_s"]
        better = one["acceptance_length"] > other["acceptance_length"] or one["packed_s"] < other["packed_s"]
        return no_worse and better

    front = [point for point in points if not any(beats(other, point) for other in points)]
    return sorted(front, key=lambda point: point["packed_s"])


def _points(record: SearchRecord) -> list[dict[str, Any]]:
    """Acceptance against latency of all healed sets and of the best unhealed ones, with predicted speedups."""
    unpruned = record.results[0]

    def point(
        dropped: LayerSet, width: float, state: str, length: float, retained: float, is_chosen: bool = False
    ) -> dict[str, Any]:
        pass_times = record.times[width][len(dropped)]
        return {
            "dropped": list(dropped),
            "width": width,
            "state": state,
            "is_chosen": is_chosen,
            "acceptance_length": length,
            "retained": retained,
            "draft_s": pass_times.draft_s,
            "packed_s": pass_times.packed_s,
            "predicted_speedup": predicted_speedup(length, pass_times, unpruned.hit_share, unpruned.overhead_s),
        }

    base = record.unpruned_lengths["all"]
    chosen = record.chosen.candidate
    points = [point((), 1.0, "unpruned", base, 1.0, chosen.name == unpruned.candidate.name)]
    for ranking in record.rankings:
        # A set found on another drafter is compared with that one, not with the unpruned drafter.
        if ranking.before.name == "unpruned":
            retained = ranking.greedy | {found.dropped: found.retained.value for found in ranking.found}
            points += [
                point(dropped, 1.0, "before healing", base * value, value) for dropped, value in retained.items()
            ]
    for entry in record.healed:
        own, is_chosen = entry.candidate, entry.candidate.name == chosen.name
        state = "healed" if own.dropped else "same training"
        points.append(point(own.dropped, own.width, state, entry.lengths["all"], entry.retained.value, is_chosen))
    return points


def _lineage(record: SearchRecord) -> dict[str, Any]:
    """Where the chosen drafter comes from, for the published manifest."""
    candidate = record.chosen.candidate
    return {
        "parent": record.spec.parent,
        "unpruned_fingerprint": drafter_fingerprint(record.results[0].candidate.folder),
        "fingerprint": drafter_fingerprint(candidate.folder),
        "dropped": list(candidate.dropped),
        "width": candidate.width,
        "trials": list(candidate.trials),
        "heal_steps": candidate.heal_steps,
        "heal_learning_rate": record.recipe.prune.heal_learning_rate if candidate.heal_steps else None,
        "heal_s": candidate.heal_s,
        "acceptance_length": record.chosen.acceptance_length,
        "retained": record.chosen.retained.as_dict(),
        "speedup": record.chosen.speedup.as_dict(),
    }
