import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.prune.conftest import PLANTED
from tests.prune.recipes import make_recipe
from workbench.decode import build_decoder
from workbench.drafter.model import load_drafter
from workbench.errors import WorkbenchError
from workbench.prune import finalists, healing, scoring, study
from workbench.prune.search import search
from workbench.prune.storage import sole_search
from workbench.targets import load_target

OPTIONS = {"drop_layers": [1, 2], "protect": [0], "trials": 8}


@pytest.fixture(scope="session")
def target_folder(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def finished(corpus_folder, planted_folder, target_folder, tmp_path_factory) -> Path:
    """Folder of an undisturbed search."""
    folder = tmp_path_factory.mktemp("search")
    search(make_recipe(str(target_folder), **OPTIONS), corpus_folder, planted_folder.parent, folder)
    return folder


def read(folder: Path):
    return json.loads((folder / "search.json").read_text())


def test_the_winner_is_whole_and_decodes(finished, target_folder):
    recipe, chosen = make_recipe(str(target_folder)), read(finished)["chosen"]
    drafter = load_drafter(finished / "drafter")
    assert drafter.spec.kept_layers == chosen["kept_layers"]
    assert drafter.num_layers == len(chosen["kept_layers"])
    assert (finished / "drafter" / "calibration.json").is_file()
    with build_decoder("synchronous", load_target(recipe.target), finished / "drafter", recipe.decode) as decoder:
        assert decoder.generate([5, 6, 7], 8).token_ids


def test_the_result_tells_everything_that_was_tried(finished):
    result = read(finished)
    assert {len(entry["best"][0]["dropped"]) for entry in result["studies"]} == {1, 2}
    assert [entry["name"] for entry in result["results"]][:2] == ["unpruned", "drop-none"]
    assert result["results"][0]["retained"]["ci95"] == [1.0, 1.0]
    assert all(entry["identical_share"] == 1.0 for entry in result["results"])
    assert [point["packed_s"] for point in result["front"]] == sorted(p["packed_s"] for p in result["front"])
    assert [entry["num_dropped"] for entry in result["pass_times"]] == [0, 1, 2]
    assert {"studies", "healing", "decoding", "total"} == set(result["seconds"])


def test_candidates_name_the_trials_that_found_them(finished):
    result = read(finished)
    trials = {
        f"{entry['study']}#{trial['number']}": trial["dropped"]
        for entry in result["studies"]
        for trial in entry["trials"]
    }
    pruned = [entry for entry in result["results"] if entry["dropped"]]
    assert len(pruned) == 2
    for entry in pruned:
        (origin,) = entry["trials"]
        assert trials[origin] == entry["dropped"]
    assert result["chosen"]["lineage"]["dropped"] == result["chosen"]["dropped"]


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("scores", marks=pytest.mark.slow),
        "study",
        "healing",
        pytest.param("decoding", marks=pytest.mark.slow),
    ],
)
def test_a_search_killed_anywhere_ends_like_an_undisturbed_one(
    moment, finished, corpus_folder, planted_folder, target_folder, tmp_path
):
    arguments = [moment, *map(str, (target_folder, corpus_folder, planted_folder.parent, tmp_path))]
    script = f"from tests.prune.test_search import die_at; die_at(*{arguments!r})"
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (tmp_path / "search.json").exists()
    search(make_recipe(str(target_folder), **OPTIONS), corpus_folder, planted_folder.parent, tmp_path)
    whole, resumed = read(finished), read(tmp_path)
    for one, other in zip(whole["studies"], resumed["studies"], strict=True):
        tried = [[trial["dropped"] for trial in run["trials"] if trial["cheap"]] for run in (one, other)]
        assert len(tried[0]) == len(tried[1])
        assert all(tried[1].count(dropped) == 1 for dropped in tried[1])
        assert other["best"][0]["dropped"] == one["best"][0]["dropped"]
    assert [entry["retained"] for entry in resumed["healed"]] == [entry["retained"] for entry in whole["healed"]]


def die_at(moment: str, target: str, corpus: str, distill: str, folder: str) -> None:
    """Runs the search of the test above and kills it at a moment."""
    torch.set_num_threads(1)
    module, name, at_call = {
        "scores": (scoring, "score_blocks", 9),
        "study": (study.TPESampler, "sample_relative", 1),
        "healing": (healing, "save_drafter", 2),
        "decoding": (finalists, "measure_generation", 7),
    }[moment]
    original, calls = getattr(module, name), 0

    def deadly(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == at_call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(module, name, deadly)
    search(make_recipe(target, **OPTIONS), Path(corpus), Path(distill), Path(folder))


def test_progressive_search_goes_on_until_too_much_is_lost(corpus_folder, planted_folder, target_folder, tmp_path):
    recipe = make_recipe(
        str(target_folder), drop_layers=[5], protect=[], layers_per_round=2, heal_steps=1, trials=8, decode_prompts=4
    )
    search(recipe, corpus_folder, planted_folder.parent, tmp_path)
    result = read(tmp_path)
    first, second = result["studies"]  # no third round, though five layers were asked for
    assert set(first["best"][0]["dropped"]) <= set(PLANTED)
    assert second["dropped_before"] == first["best"][0]["dropped"]
    by_name = {entry["name"]: entry for entry in result["healed"]}
    names = [entry["name"] for entry in result["results"]]
    assert by_name[names[2]]["retained"]["ci95"][0] >= 0.99
    assert by_name[names[3]]["retained"]["ci95"][0] < 0.99
    assert by_name["drop-none"]["heal_steps"] == 2
    assert len(result["results"][3]["trials"]) == 2


def test_narrower_layers_have_studies_of_their_own(corpus_folder, planted_folder, target_folder, tmp_path):
    recipe = make_recipe(
        str(target_folder), drop_layers=[3], protect=[], widths=[0.5], trials=4, heal_steps=2, decode_prompts=4
    )
    search(recipe, corpus_folder, planted_folder.parent, tmp_path)
    result = read(tmp_path)
    assert [entry["width"] for entry in result["studies"]] == [1.0, 0.5]
    names = [entry["name"] for entry in result["results"]]
    assert names == ["unpruned", "drop-none", "drop-2-5-6", "drop-2-5-6-width-0.5"]
    (folder,) = [path.parent for path in tmp_path.glob("healed/*/drafter/config.json") if is_narrow(path)]
    assert load_drafter(folder).model.model.layers[0].mlp.up_proj.weight.shape == (32, 32)


def is_narrow(path: Path) -> bool:
    return json.loads(path.read_text())["intermediate_size"] == 32


def test_the_time_cap_leaves_an_answer(corpus_folder, planted_folder, target_folder, tmp_path):
    recipe = make_recipe(str(target_folder), **{**OPTIONS, "finalists": 2}, max_minutes=0.001, decode_prompts=30)
    search(recipe, corpus_folder, planted_folder.parent, tmp_path)
    result = read(tmp_path)
    assert [len(entry["dropped"]) for entry in result["healed"]] == [1, 2]
    assert all(entry["retained_same_training"] is None for entry in result["results"])
    assert {entry["num_prompts"] for entry in result["results"]} == {finalists.PLAIN_PROMPTS}


def test_a_recipe_without_pruning_calibrates_the_drafter(corpus_folder, planted_folder, target_folder, tmp_path):
    search(make_recipe(str(target_folder), drop_layers=[]), corpus_folder, planted_folder.parent, tmp_path)
    assert (tmp_path / "drafter" / "calibration.json").is_file()
    assert not (planted_folder / "calibration.json").exists()
    assert read(tmp_path)["chosen"]["dropped"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_layers": [7]}, "use 1 to 5"),
        ({"storage": "sqlite:////proc/nowhere/x.db"}, "cannot be opened"),
        ({"storage": "sqlite:////tmp/x.db", "workers": 2}, "SQLite, which several workers must not share"),
    ],
)
def test_impossible_requests_do_no_work(options, message, planted_folder, tmp_path):
    recipe = make_recipe("no/such/target", **options)
    with pytest.raises(WorkbenchError, match=message):
        search(recipe, tmp_path / "no corpus", planted_folder.parent, tmp_path / "prune")
    assert not (tmp_path / "prune").exists()


def test_a_second_search_in_the_same_folder_is_refused(corpus_folder, planted_folder, target_folder, tmp_path):
    with sole_search(tmp_path), pytest.raises(WorkbenchError, match="another search works in"):
        search(make_recipe(str(target_folder)), corpus_folder, planted_folder.parent, tmp_path)
