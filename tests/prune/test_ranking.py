import dataclasses
import multiprocessing
import threading
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tests.prune.conftest import DRAFT_LENGTH, PLANTED, REAL_LAYERS
from tests.prune.recipes import make_recipe
from workbench.prune.healing import Candidate
from workbench.prune.ranking import rank_sets
from workbench.prune.storage import default_storage, open_storage
from workbench.prune.study import finished_sets
from workbench.prune.workforce import ScorerSettings, Workforce

LAYERS = list(range(REAL_LAYERS + len(PLANTED)))


def make_workforce(corpus_folder, planted_folder, scores, workers=1, seed=0) -> Workforce:
    settings = ScorerSettings(
        drafter_folder=planted_folder,
        corpus_folder=corpus_folder,
        samples=(8, 96),
        seed=seed,
        draft_length=DRAFT_LENGTH,
        cache_folder=scores,
        dtype="float32",
        device="cpu",
    )
    return Workforce(settings, workers)


def rank(workforce, folder, recipe, num_dropped=3, droppable=LAYERS, workers=1):
    before = Candidate(dropped=(), folder=workforce.settings.drafter_folder, heal_steps=0, heal_s=0.0)
    return rank_sets(workforce, recipe, droppable, num_dropped, default_storage(folder, workers), folder, None, before)


@pytest.mark.parametrize("seed", range(5))
def test_planted_layers_are_found_every_time_in_few_evaluations(seed, corpus_folder, planted_folder, tmp_path):
    with make_workforce(corpus_folder, planted_folder, tmp_path / "scores", seed=seed) as workforce:
        ranking = rank(workforce, tmp_path, make_recipe(trials=20, seed=seed))
        assert workforce.scorer.num_evaluations <= 60
    best, second = ranking.found[:2]
    assert best.dropped == PLANTED
    assert (best.retained.value, best.retained.low, best.retained.high) == (1.0, 1.0, 1.0)
    assert second.retained.value < 1.0


def test_planted_layers_are_found_without_a_head_start(corpus_folder, planted_folder, tmp_path, monkeypatch):
    """The sampler alone, from a ranking that is wrong and without the sets of the plain searches."""
    monkeypatch.setattr("workbench.prune.ranking.enqueue_sets", lambda *_: None)
    monkeypatch.setattr("workbench.prune.ranking.rank_layers", lambda scores: (0, 1, 3, 4, 2, 5, 6))
    with make_workforce(corpus_folder, planted_folder, tmp_path / "scores") as workforce:
        ranking = rank(workforce, tmp_path, make_recipe(trials=35))
    assert ranking.found[0].dropped == PLANTED


def test_two_workers_find_the_planted_layers_though_one_is_killed(corpus_folder, planted_folder, tmp_path):
    killed = []

    def kill_in_the_study() -> None:
        while not any((trial.value is not None) for study in studies(tmp_path) for trial in study.trials):
            time.sleep(0.02)
        victim = multiprocessing.active_children()[0]
        victim.kill()
        killed.append(victim.pid)

    with make_workforce(corpus_folder, planted_folder, tmp_path / "scores", workers=2) as workforce:
        killer = threading.Thread(target=kill_in_the_study, daemon=True)
        killer.start()
        ranking = rank(workforce, tmp_path, make_recipe(trials=30), workers=2)
        killer.join()
    assert killed
    assert ranking.found[0].dropped == PLANTED
    (study,) = studies(tmp_path)
    assert not study.get_trials(states=(TrialState.RUNNING, TrialState.WAITING))
    assert len(finished_sets(study)) >= 30


def studies(folder: Path) -> list[optuna.Study]:
    """All studies in the journal of several workers."""
    url = default_storage(folder, 2)
    if not Path(url.removeprefix("journal://")).is_file():
        return []
    storage = open_storage(url)
    return [optuna.load_study(study_name=None, storage=storage)] if storage.get_all_studies() else []


def test_protected_layers_stay(corpus_folder, planted_folder, tmp_path):
    droppable = [layer for layer in LAYERS if layer != PLANTED[0]]
    with make_workforce(corpus_folder, planted_folder, tmp_path / "scores") as workforce:
        ranking = rank(workforce, tmp_path, make_recipe(trials=12), num_dropped=2, droppable=droppable)
    assert ranking.found[0].dropped == PLANTED[1:]
    assert all(PLANTED[0] not in trial["dropped"] for trial in ranking.trials)


def test_a_second_ranking_computes_nothing(corpus_folder, planted_folder, tmp_path):
    rankings = []
    for _ in range(2):
        with make_workforce(corpus_folder, planted_folder, tmp_path / "scores") as workforce:
            rankings.append(rank(workforce, tmp_path, make_recipe(trials=12)))
    assert workforce.scorer.num_evaluations == 0
    assert rankings[0].as_dict() == rankings[1].as_dict()


def test_studies_are_named_after_recipe_and_number(corpus_folder, planted_folder, tmp_path):
    recipe = dataclasses.replace(make_recipe(trials=2), name="mine")
    with make_workforce(corpus_folder, planted_folder, tmp_path / "scores") as workforce:
        assert rank(workforce, tmp_path, recipe).study.startswith("mine-drop-3-")
