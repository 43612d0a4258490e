"""Draft length and number of hypotheses: measured on the winner, against the recipe's own settings.

How many blocks of which draft length pay depends on the drafter's depth, on its acceptance and on the machine; the mix
of anchored and masked-anchor hypotheses follows from the measured pass times at every round by itself. Every pair of
settings is a trial: both decoders are open and take turns prompt by prompt, and a trial ends as soon as it is clear
that its settings are the slower ones.
"""

import dataclasses
import itertools
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from workbench.console import console, progress
from workbench.decode import build_decoder
from workbench.files import fingerprint, read_json
from workbench.prune.finalists import output_limit
from workbench.prune.scoring import drafter_fingerprint
from workbench.prune.storage import OWNER, Claim, open_storage, requeue_abandoned
from workbench.recipe import DecodeOptions, Recipe
from workbench.targets import Target
from workbench.validate.statistics import Estimate, median_ratio_of
from workbench.validate.timing import Job, measure_generation

PROMPTS_PER_STEP = 8
"""Prompts between two looks at a trial."""
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


def tune_settings(
    drafter_folder: Path,
    target: Target,
    prompts: Sequence[Sequence[int]],
    recipe: Recipe,
    storage: str,
    claims: Path,
    deadline_s: float | None,
) -> dict[str, Any]:
    """Measures all pairs of `prune.draft_lengths` and `prune.hypothesis_budgets`.

    Args:
        drafter_folder: The winner's.
        target: Verifies.
        prompts: Token ids.
        recipe: Its `decode` section is what settings are compared with.
        storage: URL of the study's storage; trials of an interrupted search are found there.
        claims: Folder of the workers' locks.
        deadline_s: No trial starts later (`time.time`).

    Returns:
        The chosen settings, their speed over the recipe's own with its interval, and all trials. The recipe's own
        settings are chosen unless others are faster beyond doubt.
    """
    options = recipe.prune
    lengths = options.draft_lengths or [recipe.decode.draft_length]
    budgets = options.hypothesis_budgets or [recipe.decode.max_hypotheses]
    own = {"draft_length": recipe.decode.draft_length, "max_hypotheses": recipe.decode.max_hypotheses}
    content = fingerprint([drafter_fingerprint(drafter_folder), own, lengths, budgets])
    study = optuna.create_study(
        study_name=f"{recipe.name}-decode-{content[:8]}",
        storage=open_storage(storage),
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(recipe.seed),
    )
    requeue_abandoned(study, claims)
    grid = [
        {"draft_length": length, "max_hypotheses": budget} for length, budget in itertools.product(lengths, budgets)
    ]
    for point in grid:
        if point != own:
            study.enqueue_trial(point, skip_if_exists=True)
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    if waiting:
        with Claim(claims) as claim, progress("decode with other settings", len(waiting)) as advance:
            for _ in waiting:
                if deadline_s is not None and time.time() > deadline_s:
                    console.print(f"no time left to decode with all {len(grid)} pairs of settings")
                    break
                trial = study.ask()
                trial.set_user_attr(OWNER, claim.name)
                point = {
                    "draft_length": trial.suggest_categorical("draft_length", lengths),
                    "max_hypotheses": trial.suggest_categorical("max_hypotheses", budgets),
                }
                gain = _measure(study, trial, point, drafter_folder, target, prompts, recipe)
                advance(1, f"draft length {point['draft_length']}, {point['max_hypotheses']} hypotheses: {gain:.3f}")
    return _summary(study, own)


def _measure(
    study: optuna.Study,
    trial: optuna.Trial,
    point: dict[str, int],
    drafter_folder: Path,
    target: Target,
    prompts: Sequence[Sequence[int]],
    recipe: Recipe,
) -> float:
    """Runs one trial to its end; returns the speed of its settings over that of the recipe's."""
    speeds: dict[str, list[float]] = {"own": [], "other": []}
    with ExitStack() as stack:
        decoders = {
            name: stack.enter_context(build_decoder("asynchronous", target, drafter_folder, options))
            for name, options in (("own", recipe.decode), ("other", dataclasses.replace(recipe.decode, **point)))
        }
        for number, prompt in enumerate(prompts, start=1):
            # Turns are taken in both orders alike.
            for name in ("own", "other") if number % 2 else ("other", "own"):
                measurement = measure_generation(
                    decoders[name],
                    Job("held-out", number, name, 0),
                    prompt,
                    output_limit(recipe),
                    recipe.decode.temperature,
                    seed=recipe.seed + number,
                    device=target.model.device,
                )
                speeds[name].append(measurement.end_to_end_tokens_per_second)
            if number % PROMPTS_PER_STEP == 0 or number == len(prompts):
                gain = median_ratio_of(speeds["other"], speeds["own"])
                trial.set_user_attr("gain", [gain.value, gain.low, gain.high])
                trial.report(gain.value, number)
                if gain.high < 1:
                    study.tell(trial, state=TrialState.PRUNED)
                    return gain.value
    study.tell(trial, gain.value)
    return gain.value


def _summary(study: optuna.Study, own: dict[str, int]) -> dict[str, Any]:
    trials = study.get_trials(deepcopy=False, states=_FINISHED)
    gains = {trial.number: Estimate("median", *trial.user_attrs["gain"]) for trial in trials}
    faster = [trial for trial in trials if trial.state == TrialState.COMPLETE and gains[trial.number].low > 1]
    best = max(faster, key=lambda trial: gains[trial.number].value, default=None)
    chosen = dict(best.params) if best else own
    if best:
        console.print(
            f"draft length {chosen['draft_length']} with {chosen['max_hypotheses']} hypotheses: "
            f"{gains[best.number].value:.2f} times the speed of the recipe's settings"
        )
    return {
        **chosen,
        "gain": gains[best.number].as_dict() if best else None,
        "study": study.study_name,
        "trials": [
            {**trial.params, "gain": gains[trial.number].as_dict(), "prompts": trial.last_step} for trial in trials
        ],
    }


def tuned_options(options: DecodeOptions, search_file: Path) -> DecodeOptions:
    """Decoding options with the settings that a search chose for its winner, the recipe's own where it chose none."""
    settings = read_json(search_file).get("decode") or {}
    return dataclasses.replace(
        options, **{key: settings[key] for key in ("draft_length", "max_hypotheses") if settings}
    )
