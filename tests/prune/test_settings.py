import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tests.prune.recipes import make_recipe
from workbench.files import write_json
from workbench.prune import settings
from workbench.prune.settings import PROMPTS_PER_STEP, tune_settings, tuned_options
from workbench.prune.storage import default_storage

PROMPTS = [[5, 6]] * (2 * PROMPTS_PER_STEP)


@pytest.fixture
def speeds(monkeypatch):
    """Decoders whose speed is that of their settings; returns what was measured."""
    by_settings = {(4, 2): 100.0, (3, 2): 130.0, (4, 1): 60.0, (3, 1): 101.0}
    measured = []

    class Decoder:
        def __init__(self, method, target, folder, options):
            self.settings = (options.draft_length, options.max_hypotheses)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def measure(decoder, job, *_, **__):
        measured.append(decoder.settings)
        noise = 1 + 0.05 * (job.prompt % 3 - 1) * (job.method == "other")
        return SimpleNamespace(end_to_end_tokens_per_second=by_settings[decoder.settings] * noise)

    monkeypatch.setattr(settings, "build_decoder", Decoder)
    monkeypatch.setattr(settings, "measure_generation", measure)
    return measured


def tune(folder, planted_folder, deadline_s=None, **prune):
    recipe = make_recipe(**{"draft_lengths": [3, 4], "hypothesis_budgets": [1, 2], **prune})
    target: Any = SimpleNamespace(model=SimpleNamespace(device=None))
    storage, claims = default_storage(folder, 1), folder / "claims"
    return tune_settings(planted_folder, target, PROMPTS, recipe, storage, claims, deadline_s)


def test_the_fastest_settings_are_chosen_and_slow_ones_end_early(speeds, planted_folder, tmp_path):
    chosen = tune(tmp_path, planted_folder)
    assert (chosen["draft_length"], chosen["max_hypotheses"]) == (3, 2)
    assert chosen["gain"]["ci95"][0] > 1.2
    prompts = {(trial["draft_length"], trial["max_hypotheses"]): trial["prompts"] for trial in chosen["trials"]}
    assert prompts == {(3, 2): len(PROMPTS), (3, 1): len(PROMPTS), (4, 1): PROMPTS_PER_STEP}


def test_settings_that_may_be_no_faster_are_not_taken(speeds, planted_folder, tmp_path):
    chosen = tune(tmp_path, planted_folder, draft_lengths=[3], hypothesis_budgets=[1])
    assert (chosen["draft_length"], chosen["max_hypotheses"], chosen["gain"]) == (4, 2, None)


def test_finished_trials_are_not_measured_again(speeds, planted_folder, tmp_path):
    first = tune(tmp_path, planted_folder)
    speeds.clear()
    assert tune(tmp_path, planted_folder) == first
    assert speeds == []


def test_no_trial_starts_after_the_deadline(speeds, planted_folder, tmp_path):
    chosen = tune(tmp_path, planted_folder, deadline_s=0.0)
    assert (chosen["draft_length"], chosen["max_hypotheses"], chosen["trials"]) == (4, 2, [])
    assert speeds == []


def test_chosen_settings_reach_the_decoder(tmp_path):
    options, path = make_recipe().decode, tmp_path / "search.json"
    write_json(path, {"decode": {"draft_length": 3, "max_hypotheses": 1, "gain": None}})
    assert tuned_options(options, path) == dataclasses.replace(options, draft_length=3, max_hypotheses=1)
    write_json(path, {"decode": None})
    assert tuned_options(options, path) == options
