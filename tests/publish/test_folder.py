import dataclasses
import errno
import json
import shutil

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import make_drafter_folder, make_target
from workbench.decode.calibration import FILE_NAME as CALIBRATION_FILE
from workbench.drafter.model import load_drafter, save_model
from workbench.errors import WorkbenchError
from workbench.publish import publish


def test_the_folder_holds_what_the_design_lists(published):
    names = {path.name for path in published[3].iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
        "workbench.json",
        "validation.json",
    } <= names
    assert CALIBRATION_FILE not in names


def test_stock_transformers_loads_it_and_the_weights_are_the_drafters(published):
    recipe, drafter, _, folder = published
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    for name, tensor in load_drafter(drafter).model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    ours = AutoTokenizer.from_pretrained(folder)
    theirs = AutoTokenizer.from_pretrained(recipe.target.model)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.chat_template == theirs.chat_template


def test_the_manifest_names_what_the_drafter_was_made_from(published):
    recipe, _, _, folder = published
    manifest = json.loads((folder / "workbench.json").read_text())
    assert manifest["recipe"] == json.loads(json.dumps(recipe.as_dict()))
    assert manifest["drafter"]["kept_layers"] == [0, 2, 3]
    assert manifest["drafter"]["dropped_layers"] == [1]
    assert manifest["target"]["template_hash"]
    assert len(manifest["verification"]["prompts"]) == 4


def test_calibration_travels_along(published, tmp_path):
    recipe, drafter, run_folder, _ = published
    calibrated = shutil.copytree(drafter, tmp_path / "drafter")
    (calibrated / CALIBRATION_FILE).write_text("{}")
    # The synchronous proof reads no table that is not there; an empty one is refused by its reader.
    with pytest.raises((WorkbenchError, KeyError, TypeError)):
        publish(recipe, run_folder, calibrated, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_publishing_again_replaces_the_recipes_own_folder(published, tmp_path):
    recipe, drafter, run_folder, folder = published
    again = shutil.copytree(folder, tmp_path / "tiny")
    (again / "leftover.txt").write_text("old")
    publish(recipe, run_folder, drafter, again)
    assert not (again / "leftover.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


@pytest.mark.parametrize("content", ["notes.txt", "workbench.json"])
def test_a_folder_of_somebody_else_is_left_alone(published, tmp_path, content):
    recipe, drafter, run_folder, _ = published
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / content).write_text('{"name": "other"}')
    with pytest.raises(WorkbenchError, match=r"publish\.folder"):
        publish(recipe, run_folder, drafter, tmp_path / "out")
    assert (tmp_path / "out" / content).read_text() == '{"name": "other"}'


def test_a_drafter_for_another_target_is_refused(published, tmp_path):
    recipe, _, run_folder, _ = published
    other = make_drafter_folder(tmp_path / "drafter", make_target(), template_hash="f" * 16)
    with pytest.raises(WorkbenchError, match="does not fit the target"):
        publish(recipe, run_folder, other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("validation", [None, {"lossless": False}])
def test_what_was_not_proved_is_not_published(published, tmp_path, validation):
    recipe, drafter, _, _ = published
    if validation is not None:
        (tmp_path / "validation.json").write_text(json.dumps(validation))
    with pytest.raises(WorkbenchError, match=r"validate the drafter|not lossless"):
        publish(recipe, tmp_path, drafter, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing_behind(published, tmp_path, monkeypatch):
    recipe, drafter, run_folder, _ = published

    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("workbench.publish.folder.save_drafter", no_space)
    with pytest.raises(WorkbenchError, match="No space left on device") as failure:
        publish(recipe, run_folder, drafter, tmp_path / "out")
    assert "\n" not in str(failure.value)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_that_safetensors_reports_in_words(tmp_path):
    class Model:
        def save_pretrained(self, folder):
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(OSError, match="No space left on device") as failure:
        save_model(Model(), tmp_path)
    assert failure.value.errno == errno.ENOSPC
    assert failure.value.filename == str(tmp_path)


def test_the_recipes_precision_does_not_change_the_stored_weights(published, tmp_path):
    recipe, drafter, run_folder, _ = published
    lower = dataclasses.replace(recipe, decode=dataclasses.replace(recipe.decode, drafter_dtype="bfloat16"))
    folder = publish(lower, run_folder, drafter, tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
