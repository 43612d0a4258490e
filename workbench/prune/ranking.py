"""From a drafter to its best sets of `k` layers: importance, plain searches, then the study that they start."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from workbench.console import console, progress
from workbench.files import fingerprint, read_json, write_json
from workbench.prune.baselines import greedy_steps, one_shot_set
from workbench.prune.encoding import DropSpace, LayerSet
from workbench.prune.healing import Candidate
from workbench.prune.importance import rank_layers, score_layers
from workbench.prune.storage import without_password
from workbench.prune.study import (
    Found,
    StudyPlan,
    best_sets,
    describe_trials,
    enqueue_promotions,
    enqueue_sets,
    finished_sets,
    open_study,
)
from workbench.prune.workforce import Workforce
from workbench.recipe import Recipe

CLAIMS = "claims"
"""Folder of the workers' locks, inside a search's."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """A finished study, what it started from and what it found."""

    study: str
    storage: str
    num_dropped: int
    """By this study."""
    before: Candidate
    """What it starts from."""
    importance: dict[str, dict[int, float]]
    """Scores of the layers, by kind."""
    one_shot: dict[str, LayerSet]
    """The set that each ranking alone would drop."""
    greedy: dict[LayerSet, float]
    """The set of every step of the greedy search, and what it retains on the cheap rung."""
    trials: list[dict[str, Any]]
    found: list[Found]
    """Sets with a precise estimate, best first."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for search.json."""
        return {
            "study": self.study,
            "storage": without_password(self.storage),
            "num_dropped": self.num_dropped,
            "dropped_before": list(self.before.dropped),
            "width": self.before.width,
            "importance": self.importance,
            "one_shot": {kind: list(dropped) for kind, dropped in self.one_shot.items()},
            "greedy": [{"dropped": list(dropped), "cheap": value} for dropped, value in self.greedy.items()],
            "best": [
                {"dropped": list(found.dropped), "trial": found.trial, "retained": found.retained.as_dict()}
                for found in self.found
            ],
            "trials": self.trials,
        }


def rank_sets(
    workforce: Workforce,
    recipe: Recipe,
    droppable: Sequence[int],
    num_dropped: int,
    storage: str,
    folder: Path,
    deadline_s: float | None,
    before: Candidate,
) -> Ranking:
    """Finds the best sets of `num_dropped` further layers of the workforce's drafter.

    Args:
        workforce: Scores sets of layers of its drafter.
        recipe: Ranking, number of trials and seed; its name is the study's.
        droppable: Layers that may go.
        num_dropped: How many go.
        storage: URL of the study's storage.
        folder: Of the search.
        deadline_s: No trial starts later (`time.time`).
        before: The workforce's drafter.
    """
    scorer = workforce.scorer
    importance = _importance(workforce, droppable, num_dropped, folder)
    candidates = rank_layers(importance[recipe.prune.importance])
    space = DropSpace(candidates, num_dropped)
    plan = StudyPlan(
        name=_study_name(recipe, before, num_dropped, fingerprint([scorer.content, candidates])),
        storage=storage,
        space=space,
        trials=min(recipe.prune.trials, space.num_sets),
        seed=recipe.seed,
        deadline_s=deadline_s,
        claims=folder / CLAIMS,
    )

    def evaluate(sets: Sequence[LayerSet]) -> list[float]:
        workforce.score_ahead(sets, 0)
        return [scorer.retained(dropped, 0).value for dropped in sets]

    one_shot = {kind: one_shot_set(scores, num_dropped) for kind, scores in importance.items()}
    steps = greedy_steps(evaluate, candidates, num_dropped)
    enqueue_sets(open_study(plan), plan, [*one_shot.values(), *steps[-1]])
    with progress(f"drop {num_dropped} of {scorer.drafter.num_layers} layers", plan.trials) as advance:
        report = _reporter(advance)
        enqueue_promotions(workforce.finish_study(plan, report), plan)
        study = workforce.finish_study(plan, report)
    found = best_sets(study)
    console.print(
        f"best without {list(found[0].dropped)}: {found[0].retained.value:.1%} of the acceptance length before healing"
    )
    return Ranking(
        study=plan.name,
        storage=storage,
        num_dropped=num_dropped,
        before=before,
        importance=importance,
        one_shot=one_shot,
        greedy=dict(next(iter(step.items())) for step in steps),
        trials=describe_trials(study),
        found=found,
    )


def _study_name(recipe: Recipe, before: Candidate, num_dropped: int, content: str) -> str:
    """Recipe and number of layers, for people; the content keeps another drafter's or corpus's study away."""
    width = f"-width-{before.width:g}" if before.width < 1 else ""
    return f"{recipe.name}-drop-{len(before.dropped) + num_dropped}{width}-{content[:8]}"


def _importance(
    workforce: Workforce, droppable: Sequence[int], num_dropped: int, folder: Path
) -> dict[str, dict[int, float]]:
    """All importance scores, from the file of an earlier search of the same drafter where there is one."""
    path = folder / "scores" / f"importance-{fingerprint([workforce.scorer.content, droppable, num_dropped])}.json"
    if not path.is_file():
        workforce.score_ahead([(layer,) for layer in droppable], 0)
        write_json(path, score_layers(workforce.scorer, droppable, num_dropped))
    return {kind: {int(layer): score for layer, score in scores.items()} for kind, scores in read_json(path).items()}


def _reporter(advance: Callable[[int, str], None]) -> Callable[[optuna.Study], None]:
    shown = 0

    def report(study: optuna.Study) -> None:
        nonlocal shown
        num_finished, best = len(finished_sets(study)), best_sets(study)
        note = f"best {best[0].retained.value:.1%} without {list(best[0].dropped)}" if best else ""
        if num_finished > shown:
            advance(num_finished - shown, note)
            shown = num_finished

    return report
