"""One study: which `k` layers to drop, by retained acceptance length, with a cheap and a precise rung.

A study is named, lies in a storage, and is its own state: any number of workers take trials from it, one after
another or at the same time, and none of them knows more than the study does.
"""

import contextlib
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from workbench.prune.encoding import DropSpace, LayerSet
from workbench.prune.storage import OWNER, PROMOTED, Claim, open_storage
from workbench.validate.statistics import Estimate

PROMOTED_SHARE = 4
"""One set in so many goes from the cheap to the precise rung."""
FRESH_DRAWS = 8
"""After a set that is known the sampler is overruled by one that nobody tried: the most promising of so many draws."""
_CHEAP_STEP = 1
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


class Scorer(Protocol):
    """What a study maximises."""

    def retained(self, dropped: LayerSet, rung: int) -> Estimate:
        """Retained acceptance length without these layers, on the cheap (0) or the precise (1) rung."""
        ...


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """Everything that workers need to know about a study; plain values that travel to other processes."""

    name: str
    storage: str
    space: DropSpace
    trials: int
    """Different sets to evaluate, at most."""
    seed: int
    deadline_s: float | None
    """No trial starts after this time (`time.time`)."""
    claims: Path


@dataclass(frozen=True)
class Found:
    """A set that reached the precise rung."""

    dropped: LayerSet
    trial: int
    retained: Estimate


def open_study(plan: StudyPlan, storage: BaseStorage | None = None, seed: int | None = None) -> optuna.Study:
    """Opens a study, with all that is in it, or creates it.

    Samplers are not stored: seeded with the number of trials, a study that was interrupted draws new points.
    """
    study = optuna.create_study(
        study_name=plan.name,
        storage=storage or open_storage(plan.storage),
        direction="maximize",
        load_if_exists=True,
        pruner=SuccessiveHalvingPruner(min_resource=1, reduction_factor=PROMOTED_SHARE),
    )
    study.sampler = TPESampler(seed=(plan.seed if seed is None else seed) + len(study.trials))
    return study


def enqueue_sets(study: optuna.Study, plan: StudyPlan, sets: Sequence[LayerSet]) -> None:
    """Queues sets that the search starts from, those apart that are in the study already."""
    for dropped in dict.fromkeys(sets):
        study.enqueue_trial(plan.space.encode(dropped), skip_if_exists=True)


def enqueue_promotions(study: optuna.Study, plan: StudyPlan) -> None:
    """Queues the best quarter of the sets for the precise rung, those apart that reached it.

    The pruner judges a set by those before it, and a study begins with its best guesses: sets as good as they are
    come too late for it.
    """
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    queued = {plan.space.decode(t.system_attrs["fixed_params"]) for t in waiting if t.user_attrs.get(PROMOTED)}
    by_cheap = sorted(finished_sets(study).items(), key=lambda item: -item[1].intermediate_values[_CHEAP_STEP])
    for dropped, trial in by_cheap[: math.ceil(len(by_cheap) / PROMOTED_SHARE)]:
        if trial.state == TrialState.PRUNED and dropped not in queued:
            study.enqueue_trial(plan.space.encode(dropped), user_attrs={PROMOTED: True})


def work_on(
    plan: StudyPlan,
    scorer: Scorer,
    claim: Claim,
    worker: int = 0,
    on_trial: Callable[[optuna.Study], Any] | None = None,
) -> None:
    """Evaluates trials of a study until it is finished or its time is over.

    Args:
        plan: Which study.
        scorer: Scores sets; a set that it knows costs nothing.
        claim: Marks the trials of this process.
        worker: Number of this worker, so that no two draw the same points.
        on_trial: Called after every trial.
    """
    study = open_study(plan, seed=plan.seed + 7919 * worker)
    is_repeat = False
    while not is_finished(study, plan):
        if is_repeat:
            _enqueue_fresh_set(study, plan, random.Random(f"{plan.seed} {worker} {len(study.trials)}"))
        trial = study.ask()
        # A trial that another process closed meanwhile, taking this one for dead, is none of ours any more.
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr(OWNER, claim.name)
            is_repeat = _evaluate(study, trial, plan.space, scorer)
        if on_trial is not None:
            on_trial(study)


def _enqueue_fresh_set(study: optuna.Study, plan: StudyPlan, rng: random.Random) -> None:
    known, space = finished_sets(study), plan.space
    draws = [dropped for _ in range(FRESH_DRAWS) if (dropped := space.draw(rng, known)) is not None]
    if draws:
        study.enqueue_trial(space.encode(min(draws, key=lambda dropped: sum(map(space.candidates.index, dropped)))))


def _evaluate(study: optuna.Study, trial: optuna.Trial, space: DropSpace, scorer: Scorer) -> bool:
    """Runs one trial through the rungs; returns whether its set was known."""
    point = {name: trial.suggest_int(name, low, high) for name, (low, high) in space.slots().items()}
    dropped = space.decode(point)
    trial.set_user_attr("dropped", list(dropped))
    known = finished_sets(study).get(dropped)
    is_promoted = bool(trial.user_attrs.get(PROMOTED))
    if known is not None:
        trial.set_user_attr("repeats", known.number)
    if known is not None and not (is_promoted and known.state == TrialState.PRUNED):
        # The same end as the first time, without the pruner, whose quota counts sets.
        trial.report(known.intermediate_values[_CHEAP_STEP], _CHEAP_STEP)
        value = known.value if known.state == TrialState.COMPLETE else None
        study.tell(trial, value, state=known.state, skip_if_finished=True)
        return True
    cheap = scorer.retained(dropped, 0)
    if known is None:
        trial.set_user_attr("cheap", [cheap.value, cheap.low, cheap.high])
    trial.report(cheap.value, _CHEAP_STEP)
    if not is_promoted and trial.should_prune():
        study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        return False
    precise = scorer.retained(dropped, 1)
    trial.set_user_attr("precise", [precise.value, precise.low, precise.high])
    study.tell(trial, precise.value, skip_if_finished=True)
    return False


def is_finished(study: optuna.Study, plan: StudyPlan) -> bool:
    """All sets that were asked for (or that exist) are evaluated and no promotion waits, or the time is over."""
    finished = finished_sets(study)
    if plan.deadline_s is not None and time.time() > plan.deadline_s:
        # Without a single precise value the search would have no answer.
        return any(trial.state == TrialState.COMPLETE for trial in finished.values())
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    if any(trial.user_attrs.get(PROMOTED) for trial in waiting):
        return False
    return len(finished) >= min(plan.trials, plan.space.num_sets)


def finished_sets(study: optuna.Study) -> dict[LayerSet, FrozenTrial]:
    """The trial that evaluated each set: the one that went furthest, the first one where there are several."""
    trials = study.get_trials(deepcopy=False, states=_FINISHED)
    by_rung = sorted(trials, key=lambda trial: (trial.state == TrialState.COMPLETE, -trial.number))
    return {tuple(trial.user_attrs["dropped"]): trial for trial in by_rung}


def best_sets(study: optuna.Study) -> list[Found]:
    """Sets that reached the precise rung, best first."""
    found = [
        Found(dropped, trial.number, Estimate("mean", *trial.user_attrs["precise"]))
        for dropped, trial in finished_sets(study).items()
        if trial.state == TrialState.COMPLETE
    ]
    return sorted(found, key=lambda item: -item.retained.value)


def describe_trials(study: optuna.Study) -> list[dict[str, Any]]:
    """The history of a study as plain values, in order."""
    return [
        {
            "number": trial.number,
            "dropped": trial.user_attrs["dropped"],
            "outcome": "complete" if trial.state == TrialState.COMPLETE else "pruned",
            "cheap": trial.user_attrs.get("cheap"),
            "precise": trial.user_attrs.get("precise"),
            "repeats": trial.user_attrs.get("repeats"),
        }
        for trial in study.get_trials(deepcopy=False, states=_FINISHED)
    ]
