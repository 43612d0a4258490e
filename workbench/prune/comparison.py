"""Does the search beat simpler ways of choosing layers? A table over several seeds, on blocks that no search saw.

Every seed draws its own blocks from one half of the held-out responses; each way of choosing picks its set there. All
sets are then judged on the same blocks of the other half, so that a search that fits the noise of its blocks gains
nothing by it. Random choice looks at as many sets as the search.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.console import console, progress
from workbench.corpus.responses import load_corpus
from workbench.drafter.model import read_spec
from workbench.files import write_json, write_text
from workbench.prune.baselines import random_sets
from workbench.prune.encoding import DropSpace, LayerSet
from workbench.prune.healing import Candidate
from workbench.prune.importance import rank_layers
from workbench.prune.objective import retained_by_seed
from workbench.prune.ranking import Ranking, rank_sets
from workbench.prune.request import check_request, droppable_layers
from workbench.prune.scoring import BlockScorer
from workbench.prune.storage import default_storage, sole_search
from workbench.prune.workforce import ScorerSettings, Workforce
from workbench.recipe import Recipe
from workbench.targets import choose_device
from workbench.validate.statistics import Estimate

COMPARISON_FILE = "comparison.json"
TABLE_FILE = "comparison.md"
_JUDGING_SEED = 104729


@dataclass(frozen=True)
class Choice:
    """What one way of choosing chose with one seed."""

    dropped: LayerSet
    evaluations: int
    """Sets that it looked at."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of choosing `num_dropped` layers."""

    num_dropped: int
    method: str
    choices: list[Choice]
    """By seed."""
    retained: Estimate
    """Mean over seeds, before healing, on blocks that no choice was made on."""
    gain: Estimate
    """The same less that of the one-shot set of the same seed."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "num_dropped": self.num_dropped,
            "method": self.method,
            "sets": [list(choice.dropped) for choice in self.choices],
            "evaluations": [choice.evaluations for choice in self.choices],
            "retained": self.retained.as_dict(),
            "gain": self.gain.as_dict(),
        }


def compare_searches(
    recipe: Recipe,
    corpus_folder: Path,
    distill_folder: Path,
    folder: Path,
    seeds: int = 5,
    max_minutes: float | None = None,
) -> list[Row]:
    """Compares the search with one-shot, greedy and random choices; writes a table and its numbers.

    Args:
        recipe: Its `prune` section: numbers of layers, ranking, trials, workers.
        corpus_folder: Held-out responses.
        distill_folder: Holds the unpruned drafter.
        folder: Gets `comparison.md` and `comparison.json`; an interrupted comparison continues there.
        seeds: Repetitions with other blocks and another sampler.
        max_minutes: No further seed starts later; the table is of those that are finished.
    """
    deadline_s = None if max_minutes is None else time.time() + 60 * max_minutes
    unpruned = Candidate(dropped=(), folder=distill_folder / "drafter", heal_steps=0, heal_s=0.0)
    check_request(recipe, read_spec(unpruned.folder).kept_layers)
    num_held_out = len(load_corpus(corpus_folder).held_out)
    with sole_search(folder):
        settings = ScorerSettings(
            drafter_folder=unpruned.folder,
            corpus_folder=corpus_folder,
            samples=(0, num_held_out // 2),
            seed=_JUDGING_SEED,
            draft_length=recipe.decode.draft_length,
            cache_folder=folder / "scores",
            dtype=recipe.decode.drafter_dtype,
            device=str(choose_device(recipe.target.device)),
        )
        chosen: dict[tuple[int, str], list[Choice]] = {}
        for seed in range(recipe.seed, recipe.seed + seeds):
            num_done = seed - recipe.seed
            if num_done and deadline_s is not None and time.time() > deadline_s:
                console.print(f"time is up after {num_done} of {seeds} seeds: the same command goes on with the others")
                break
            console.print(f"seed {num_done + 1} of {seeds}")
            own = dataclasses.replace(settings, samples=(num_held_out // 2, num_held_out), seed=seed)
            for key, choice in _choose(dataclasses.replace(recipe, seed=seed), own, unpruned, folder).items():
                chosen.setdefault(key, []).append(choice)
        rows = _judge(settings.build(), chosen)
        table = render_table(rows)
        write_text(folder / TABLE_FILE, table)
        write_json(folder / COMPARISON_FILE, {"rows": [row.as_dict() for row in rows]})
    console.print(table)
    return rows


def _choose(
    recipe: Recipe, settings: ScorerSettings, unpruned: Candidate, folder: Path
) -> dict[tuple[int, str], Choice]:
    """What each method chooses with the recipe's seed, by number of layers and method."""
    droppable = droppable_layers(recipe, read_spec(unpruned.folder).kept_layers)
    storage = default_storage(folder, recipe.prune.workers)
    named = dataclasses.replace(recipe, name=f"{recipe.name}-seed-{recipe.seed}")
    chosen = {}
    with Workforce(settings, recipe.prune.workers) as workforce:
        for count in recipe.prune.drop_layers:
            ranking = rank_sets(workforce, named, droppable, count, storage, folder, None, unpruned)
            for method, choice in _choose_from(ranking, recipe, workforce).items():
                chosen[count, method] = choice
    return chosen


def _choose_from(ranking: Ranking, recipe: Recipe, workforce: Workforce) -> dict[str, Choice]:
    scores, num_dropped = ranking.importance[recipe.prune.importance], ranking.num_dropped
    num_layers = len(scores)
    num_ranked = num_layers if recipe.prune.importance == "leave_one_out" else 0
    num_greedy = sum(num_layers - step for step in range(num_dropped))
    # The last step's sets are among the study's.
    num_searched = num_greedy - (num_layers - num_dropped + 1) + len({tuple(t["dropped"]) for t in ranking.trials})
    drawn = random_sets(DropSpace(rank_layers(scores), num_dropped), num_searched, recipe.seed)
    workforce.score_ahead(drawn, 0)
    luckiest = max(drawn, key=lambda dropped: workforce.scorer.retained(dropped, 0).value)
    return {
        "one-shot": Choice(ranking.one_shot[recipe.prune.importance], num_ranked),
        "random": Choice(luckiest, len(drawn)),
        "greedy": Choice(list(ranking.greedy)[-1], num_greedy),
        "search": Choice(ranking.found[0].dropped, num_searched),
    }


def _judge(judge: BlockScorer, chosen: dict[tuple[int, str], list[Choice]]) -> list[Row]:
    reference = judge.scores((), 1)
    sets = dict.fromkeys(choice.dropped for choices in chosen.values() for choice in choices)
    emitted_N = {}
    with progress("judge the chosen sets", len(sets)) as advance:
        for dropped in sets:
            emitted_N[dropped] = judge.scores(dropped, 1).emitted_N
            advance(1, "")
    rows = []
    for (count, method), choices in chosen.items():
        own_KN = np.array([emitted_N[choice.dropped] for choice in choices])
        base_KN = np.array([emitted_N[choice.dropped] for choice in chosen[count, "one-shot"]])
        retained, gain = (
            retained_by_seed(values_KN, reference.emitted_N, reference.sequence_N)
            for values_KN in (own_KN, own_KN - base_KN)
        )
        rows.append(Row(num_dropped=count, method=method, choices=choices, retained=retained, gain=gain))
    return rows


def render_table(rows: Sequence[Row]) -> str:
    """The comparison as a Markdown table."""
    lines = [
        f"Retained acceptance length before healing, mean over {len(rows[0].choices)} seeds, on held-out blocks that",
        "no method saw; the gain is over the one-shot set of the same seed, block by block. The 95 % intervals are",
        "over other seeds and other responses.",
        "",
        "| dropped | method | sets looked at | retained | gain over one-shot, points | sets chosen |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        retained, gain = row.retained, row.gain
        names = ["-".join(map(str, choice.dropped)) for choice in row.choices]
        chosen = ", ".join(f"{name} ({names.count(name)}x)" for name in dict.fromkeys(names))
        evaluations = np.mean([choice.evaluations for choice in row.choices])
        lines.append(
            f"| {row.num_dropped} | {row.method} | {evaluations:.0f} "
            f"| {retained.value:.1%} ({retained.low:.1%} to {retained.high:.1%}) "
            f"| {100 * gain.value:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}) | {chosen} |"
        )
    return "\n".join(lines) + "\n"
