"""Where a drafter comes from, in manifest and card: parent, layers, search, healing, training, licence."""

import dataclasses
import json
import re
import shutil

import pytest
import yaml

from tests.prune.test_page import ESTIMATE, make_result
from tests.publish.test_card import numbers_of
from workbench.errors import WorkbenchError
from workbench.publish import publish
from workbench.publish.lineage import read_licence, read_lineage
from workbench.recipe import PublishOptions, load_recipe

LINEAGE = {
    "parent": "tiny",
    "dropped": [1],
    "trials": ["tiny-drop-1-abcd#0"],
    "heal_steps": 10,
    "heal_learning_rate": 3e-4,
    "heal_s": 90.0,
    "acceptance_length": 5.2,
    "retained": ESTIMATE,
}


@pytest.fixture(scope="module")
def searched(published, tmp_path_factory):
    """(manifest, card, folder) of a drafter with a whole run behind it."""
    recipe, drafter, run_folder, _ = published
    folder = tmp_path_factory.mktemp("searched")
    run = shutil.copytree(run_folder, folder / "run")
    result = make_result(chosen={"name": "drop-1", "dropped": [1], "reason": "it is the fastest", "lineage": LINEAGE})
    for study in result["studies"]:
        study["one_shot"] = {"block_influence": [1]}
    write(run / "prune" / "search.json", result)
    report = {"steps": 40, "seconds": 150.0, "clean_tokens": 1000, "block_rows": 2000, "final": {}, "curve": [1, 2]}
    write(run / "distill" / "distill.json", report)
    write(run / "corpus" / "corpus.json", {"fingerprint": "abc", "num_train": 96, "lengths": [1, 2, 3]})
    own = dataclasses.replace(
        recipe,
        prune=dataclasses.replace(recipe.prune, storage="postgresql://me:secret@host/db"),
        publish=PublishOptions(licence="mit", repository="org/tiny"),
    )
    out = publish(own, run, drafter, folder / "out")
    return json.loads((out / "workbench.json").read_text()), (out / "README.md").read_text(), out


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def test_the_manifest_holds_search_training_and_data(searched):
    manifest = searched[0]
    assert manifest["search"]["chosen"] == LINEAGE
    (study,) = manifest["search"]["studies"]
    assert study["study"] == "tiny-drop-1-abcd"
    assert study["num_trials"] == 2
    assert manifest["distillation"]["clean_tokens"] == 1000
    assert manifest["corpus"] == {"fingerprint": "abc", "num_train": 96}
    assert manifest["licence"] == "mit"


def test_no_password_and_no_local_storage_is_published(searched):
    for path in searched[2].rglob("*"):
        if path.is_file():
            assert b"secret" not in path.read_bytes(), path
    assert searched[0]["recipe"]["prune"]["storage"] == "postgresql://me:***@host/db"
    assert "sqlite" not in json.dumps(searched[0])


def test_the_card_tells_it(searched):
    card = " ".join(searched[1].split())
    for sentence in (
        "Parent: target, 4 layers. Layers 1 were dropped; kept are 0, 2, 3 (original indices).",
        "Searched in 2 trials of one study: it is the fastest.",
        "Found by `tiny-drop-1-abcd#0`.",
        "Healed for 10 steps, 1.5 minutes.",
        "Distilled in 2.5 minutes: 40 steps, 1000 clean tokens and 2000 block rows",
        "hf download org/tiny --local-dir",
        "license: mit",
    ):
        assert sentence in card, sentence


def test_the_recipe_of_a_card_can_be_run_again(searched, tmp_path):
    command = re.search(r'^\.venv/bin/python -c "(.*)" > ', searched[1], re.MULTILINE)
    assert command is not None
    assert "json.load" in command[1]
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(json.loads((searched[2] / "workbench.json").read_text())["recipe"]))
    assert load_recipe(str(again)).as_dict() == searched[0]["recipe"]


def test_an_unfinished_run_has_no_lineage(tmp_path):
    assert read_lineage(tmp_path) == {}


def test_a_search_that_dropped_nothing(tmp_path):
    write(tmp_path / "prune" / "search.json", {"chosen": {"name": "unpruned", "reason": "prune.drop_layers is empty"}})
    lineage = read_lineage(tmp_path)["search"]
    assert lineage["chosen"] is None
    assert lineage["studies"] == []


def recipe_for(model, licence="null", parent="target"):
    options = ["--target.model", str(model), "--publish.licence", licence, "--drafter.parent", str(parent)]
    return load_recipe("quickstart", options)


def test_the_licence_is_the_parents(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: llama3.1\n---\n# x\n")
    (tmp_path / "model.gguf").write_text("")
    assert read_licence(recipe_for(tmp_path)) == "llama3.1"
    assert read_licence(recipe_for(tmp_path / "model.gguf")) == "llama3.1"
    assert read_licence(recipe_for("checkpoints/qwen3-arith", parent=tmp_path)) == "llama3.1"
    assert read_licence(recipe_for("checkpoints/qwen3-arith")) == "apache-2.0"
    assert read_licence(recipe_for(tmp_path, licence="mit")) == "mit"


@pytest.mark.parametrize("card", [None, "# no front matter", "---\ntags: [x]\n---\n", "---\nlicense: [\n---\n"])
def test_no_licence_no_drafter(tmp_path, card):
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WorkbenchError, match=r"names no licence: set publish\.licence") as failure:
        read_licence(recipe_for(tmp_path))
    assert "\n" not in str(failure.value)


def test_numbers_of_the_card_come_from_the_manifest(searched):
    text = re.sub(
        r"```.*?```|`[^`]*`", "", searched[1].split("## Lineage")[1].split("## Reproduce")[0], flags=re.DOTALL
    )
    known = set(map(float, numbers_of(json.dumps(searched[0])))) | {1.5, 2.5}
    assert all(float(number) in known for number in numbers_of(text))
