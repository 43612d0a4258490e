"""Does the search beat simpler ways of choosing layers? A table over several seeds, on blocks that no search saw.

Every seed draws its own blocks from one half of the held-out responses; each way of choosing picks its set there. All
sets are then judged on the same blocks of the other half, so that a search that fits the noise of its blocks gains
nothing by it.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.console import console
from workbench.corpus.responses import load_corpus
from workbench.drafter.model import read_spec
from workbench.files import write_json, write_text
from workbench.prune.baselines import random_sets
from workbench.prune.encoding import DropSpace, LayerSet
from workbench.prune.healing import Candidate
from workbench.prune.importance import rank_layers
from workbench.prune.objective import retained_acceptance, retained_difference
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


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of choosing `num_dropped` layers."""

    num_dropped: int
    method: str
    sets: list[LayerSet]
    """What it chose, by seed."""
    evaluations: int
    """Sets that it looked at, per seed."""
    retained: Estimate
    """Mean over seeds, before healing, on blocks that no choice was made on."""
    gain: Estimate
    """The same less that of the one-shot set of the same seed."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"retained": self.retained.as_dict(), "gain": self.gain.as_dict()}


def compare_searches(
    recipe: Recipe, corpus_folder: Path, distill_folder: Path, folder: Path, seeds: int = 5, workers: int = 1
) -> list[Row]:
    """Compares the search with one-shot, greedy and random choices; writes a table and its numbers.

    Args:
        recipe: Its `prune` section: numbers of layers, ranking, trials.
        corpus_folder: Held-out responses.
        distill_folder: Holds the unpruned drafter.
        folder: Gets `comparison.md` and `comparison.json`; an interrupted comparison continues there.
        seeds: Repetitions with other blocks and another sampler.
        workers: Processes that evaluate sets of layers.
    """
    unpruned = Candidate(dropped=(), folder=distill_folder / "drafter", heal_steps=0, heal_s=0.0)
    kept_layers = read_spec(unpruned.folder).kept_layers
    check_request(recipe, kept_layers)
    droppable = droppable_layers(recipe, kept_layers)
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
        judge = settings.build()
        chosen: dict[int, dict[str, list[LayerSet]]] = {count: {} for count in recipe.prune.drop_layers}
        evaluations: dict[tuple[int, str], int] = {}
        for seed in range(recipe.seed, recipe.seed + seeds):
            console.print(f"seed {seed}")
            seeded = dataclasses.replace(recipe, seed=seed, name=f"{recipe.name}-seed-{seed}")
            own = dataclasses.replace(settings, samples=(num_held_out // 2, num_held_out), seed=seed)
            with Workforce(own, workers) as workforce:
                for count, by_method in chosen.items():
                    storage = default_storage(folder, workers)
                    ranking = rank_sets(workforce, seeded, droppable, count, storage, folder, None, unpruned)
                    for method, (dropped, looked_at) in _choices(ranking, seeded, workforce.scorer).items():
                        by_method.setdefault(method, []).append(dropped)
                        evaluations[count, method] = looked_at
        rows = [
            _judge(judge, count, method, sets, by_method["one-shot"], evaluations[count, method])
            for count, by_method in chosen.items()
            for method, sets in by_method.items()
        ]
        table = render_table(rows, seeds)
        write_text(folder / TABLE_FILE, table)
        write_json(folder / COMPARISON_FILE, {"seeds": seeds, "rows": [row.as_dict() for row in rows]})
    console.print(table)
    return rows


def _choices(ranking: Ranking, recipe: Recipe, scorer: BlockScorer) -> dict[str, tuple[LayerSet, int]]:
    """The set that each method chooses, and how many sets it looks at for that."""
    scores = ranking.importance[recipe.prune.importance]
    space = DropSpace(rank_layers(scores), ranking.num_dropped)
    drawn = random_sets(space, recipe.prune.trials, recipe.seed)
    num_layers = len(scores)
    num_ranked = num_layers if recipe.prune.importance == "leave_one_out" else 0
    num_greedy = sum(num_layers - step for step in range(ranking.num_dropped))
    num_searched = len({tuple(trial["dropped"]) for trial in ranking.trials})
    return {
        "one-shot": (ranking.one_shot[recipe.prune.importance], num_ranked),
        "random": (max(drawn, key=lambda dropped: scorer.retained(dropped, 0).value), len(drawn)),
        "greedy": (list(ranking.greedy)[-1], num_greedy),
        "search": (ranking.found[0].dropped, num_greedy - (num_layers - ranking.num_dropped + 1) + num_searched),
    }


def _judge(
    judge: BlockScorer, count: int, method: str, sets: Sequence[LayerSet], one_shot: Sequence[LayerSet], looked_at: int
) -> Row:
    reference = judge.scores((), 1)

    def mean_over_seeds(chosen: Sequence[LayerSet]) -> np.ndarray:
        return np.mean([judge.scores(dropped, 1).emitted_N for dropped in chosen], axis=0)

    own_N, base_N = mean_over_seeds(sets), mean_over_seeds(one_shot)
    return Row(
        num_dropped=count,
        method=method,
        sets=list(sets),
        evaluations=looked_at,
        retained=retained_acceptance(own_N, reference.emitted_N, reference.sequence_N),
        gain=retained_difference(own_N, base_N, reference.emitted_N, reference.sequence_N),
    )


def render_table(rows: Sequence[Row], seeds: int) -> str:
    """The comparison as a Markdown table."""
    lines = [
        f"Retained acceptance length before healing, mean over {seeds} seeds with 95 % intervals, on held-out blocks",
        "that no method saw; the gain is over the one-shot set of the same seed, block by block.",
        "",
        "| dropped | method | sets looked at | retained | gain over one-shot, points | sets chosen |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        retained, gain = row.retained, row.gain
        names = {"-".join(map(str, dropped)): row.sets.count(dropped) for dropped in row.sets}
        chosen = ", ".join(f"{name} ({count}x)" for name, count in names.items())
        lines.append(
            f"| {row.num_dropped} | {row.method} | {row.evaluations} "
            f"| {retained.value:.1%} ({retained.low:.1%} to {retained.high:.1%}) "
            f"| {100 * gain.value:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}) | {chosen} |"
        )
    return "\n".join(lines) + "\n"
