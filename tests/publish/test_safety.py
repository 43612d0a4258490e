"""Hostile folders: nothing that they hold is ever run, and each is refused with one line."""

import json
import pickle
import shutil

import pytest

from tests.publish.test_verify import reseal
from workbench.drafter.model import load_drafter
from workbench.errors import WorkbenchError
from workbench.publish import verify
from workbench.publish.exports import export_drafter
from workbench.publish.lineage import read_licence
from workbench.publish.safety import refuse_code
from workbench.recipe import TargetOptions, load_recipe
from workbench.targets import load_target


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class Marker:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("config.json", {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "auto_map"),
        ("config.json", {"nested": [{"trust_remote_code": True}]}, "trust_remote_code"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}, "auto_map"),
        ("generation_config.json", {"trust_remote_code": True}, "trust_remote_code"),
    ],
)
def test_configurations_that_ask_for_code(copied, name, changes, key):
    change_json(copied / name, **changes)
    reseal(copied)
    for use in (verify, lambda folder: export_drafter(folder, "assistant")):
        with pytest.raises(WorkbenchError, match=f"{name} has the key {key}") as failure:
            use(copied)
        assert "\n" not in str(failure.value)
    assert not copied.with_name("tiny-assistant").exists()


def test_code_in_a_folder_is_not_run_even_by_a_reader_that_does_not_check(copied, tmp_path):
    (copied / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom transformers import Qwen3ForCausalLM\n"
    )
    change_json(copied / "config.json", auto_map={"AutoModelForCausalLM": "evil.Qwen3ForCausalLM"})
    load_drafter(copied)
    change_json(copied / "config.json", model_type="evil", architectures=["EvilForCausalLM"])
    with pytest.raises(WorkbenchError) as failure:
        load_drafter(copied)
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pkl", ".ckpt", ".py", ".so", ".npy", ".PTH"])
def test_files_that_could_run_code(tmp_path, suffix):
    (tmp_path / f"model{suffix}").write_bytes(b"x")
    with pytest.raises(WorkbenchError, match=rf"holds model\{suffix}: a drafter is safetensors"):
        refuse_code(tmp_path)


def test_pickled_weights_are_not_loaded(copied, published, tmp_path):
    for folder in (copied, shutil.copytree(published[0].target.model, tmp_path / "target")):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Marker(tmp_path / "ran")))
    with pytest.raises(WorkbenchError, match="cannot be loaded"):
        load_drafter(copied)
    with pytest.raises(WorkbenchError, match="cannot be loaded"):
        load_target(TargetOptions(model=str(tmp_path / "target")))
    assert not (tmp_path / "ran").exists()


def test_yaml_tags_of_recipes_and_cards_make_no_objects(tmp_path, published):
    tag = f"!!python/object/apply:builtins.open ['{tmp_path / 'ran'}', 'w']"
    (tmp_path / "hostile.yaml").write_text(f"name: {tag}\n")
    with pytest.raises(WorkbenchError, match="is no valid YAML"):
        load_recipe(str(tmp_path / "hostile.yaml"))
    (tmp_path / "README.md").write_text(f"---\nlicense: {tag}\n---\n")
    (tmp_path / "config.json").write_text("{}")
    recipe = load_recipe("quickstart", ["--target.model", str(tmp_path)])
    with pytest.raises(WorkbenchError, match="names no licence"):
        read_licence(recipe)
    assert not (tmp_path / "ran").exists()
