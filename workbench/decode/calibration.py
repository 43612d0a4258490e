"""What past rounds say about the drafter's own probabilities: tables stored beside the drafter's weights.

The drafter's marginals ignore the draft tokens before a position, so they are no acceptance probabilities. Two small
tables are: P(accepted | all before accepted) by position and confidence, and P(bonus has rank r) by rank, apart for
rejections and for fully accepted drafts.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from workbench.files import read_json, write_json

FILE_NAME = "calibration.json"
CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
"""Borders of the confidence bins; a bin more than borders."""
NUM_RANKS = 8
"""Ranks of the bonus that have a probability of their own."""
_PRIOR_ROUNDS = 4.0
"""Weight of the table-free guess in every cell, so that rare cells stay sensible."""


@dataclass(frozen=True)
class RoundRecord:
    """What one verified draft teaches."""

    confidences: Sequence[float]
    """The drafter's probability of each draft token."""
    bonus_ids: Sequence[Sequence[int]]
    """Candidates for the bonus after each number of accepted tokens, by rank."""
    num_accepted: int
    bonus: int
    masked_anchor: bool
    """Whether the draft came from a block with a masked anchor."""


@dataclass(frozen=True)
class Calibration:
    """Fitted tables.

    `acceptance[position][bin]` is P(accepted | all before accepted); `rejected_rank[r]` and `full_rank[r]` are
    P(the bonus is the candidate of rank r) after a rejection and after full acceptance.
    """

    acceptance: list[list[float]]
    rejected_rank: list[float]
    full_rank: list[float]
    anchored_length: float
    masked_length: float
    num_rounds: int

    def acceptance_prob(self, position: int, confidence: float) -> float:
        """P(accepted | all before accepted) of a draft token."""
        row = self.acceptance[min(position, len(self.acceptance) - 1)]
        return row[confidence_bin(confidence)]


def confidence_bin(confidence: float) -> int:
    """Index of the bin that a confidence falls in."""
    return sum(confidence >= edge for edge in CONFIDENCE_EDGES)


def default_calibration(draft_length: int) -> Calibration:
    """Sensible without any data: acceptance is the middle of the confidence bin, later ranks get geometrically less."""
    borders = (0.0, *CONFIDENCE_EDGES, 1.0)
    middles = [(low + high) / 2 for low, high in itertools.pairwise(borders)]
    ranks = [0.5**rank for rank in range(1, NUM_RANKS + 1)]
    return Calibration([middles] * draft_length, ranks, ranks, 1 + 0.75 * draft_length, 1 + 0.68 * draft_length, 0)


def fit_calibration(records: Iterable[RoundRecord], draft_length: int) -> Calibration:
    """Counts rounds into tables, each cell drawn towards the default by a few imagined rounds."""
    prior = default_calibration(draft_length)
    num_bins = len(CONFIDENCE_EDGES) + 1
    tried = [[0.0] * num_bins for _ in range(draft_length)]
    accepted = [[0.0] * num_bins for _ in range(draft_length)]
    ranks = {"rejected": [0.0] * NUM_RANKS, "full": [0.0] * NUM_RANKS}
    rank_rounds = {"rejected": 0, "full": 0}
    lengths: dict[bool, list[int]] = {False: [], True: []}
    num_rounds = 0
    for record in records:
        num_rounds += 1
        lengths[record.masked_anchor].append(record.num_accepted + 1)
        for position, confidence in enumerate(record.confidences[: record.num_accepted + 1]):
            cell = confidence_bin(confidence)
            tried[position][cell] += 1
            accepted[position][cell] += position < record.num_accepted
        kind = "full" if record.num_accepted == len(record.confidences) else "rejected"
        rank_rounds[kind] += 1
        candidates = list(record.bonus_ids[record.num_accepted][:NUM_RANKS])
        if record.bonus in candidates:
            ranks[kind][candidates.index(record.bonus)] += 1

    def drawn(count: float, total: float, guess: float) -> float:
        return (count + _PRIOR_ROUNDS * guess) / (total + _PRIOR_ROUNDS)

    def mean_length(masked: bool, guess: float) -> float:
        seen = lengths[masked]
        return (sum(seen) + _PRIOR_ROUNDS * guess) / (len(seen) + _PRIOR_ROUNDS)

    anchored_length = mean_length(False, prior.anchored_length)
    return Calibration(
        acceptance=[
            [drawn(accepted[p][c], tried[p][c], prior.acceptance[p][c]) for c in range(num_bins)]
            for p in range(draft_length)
        ],
        rejected_rank=[
            drawn(count, rank_rounds["rejected"], prior.rejected_rank[r]) for r, count in enumerate(ranks["rejected"])
        ],
        full_rank=[drawn(count, rank_rounds["full"], prior.full_rank[r]) for r, count in enumerate(ranks["full"])],
        anchored_length=anchored_length,
        masked_length=min(anchored_length, mean_length(True, prior.masked_length)),
        num_rounds=num_rounds,
    )


def write_calibration(calibration: Calibration, drafter_folder: Path) -> None:
    """Stores the tables with the drafter."""
    write_json(drafter_folder / FILE_NAME, asdict(calibration))


def load_calibration(drafter_folder: Path, draft_length: int) -> Calibration:
    """Tables stored with the drafter, or the defaults where there are none."""
    path = drafter_folder / FILE_NAME
    return Calibration(**read_json(path)) if path.is_file() else default_calibration(draft_length)
