import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import make_drafter_folder, make_model, make_target
from tests.validate.tiny import make_recipe, write_pair
from workbench.publish import publish
from workbench.recipe import Recipe
from workbench.targets import Target
from workbench.validate import validate


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """(recipe, drafter folder, run folder, published folder) of a tiny pair; tests copy before they change it."""
    folder = tmp_path_factory.mktemp("published")
    target, drafter = write_pair(folder, kept_layers=[0, 2, 3], parent_num_layers=4)
    recipe = make_recipe(folder, target, num_prompts=4)
    validate(recipe, {"pruned": drafter}, folder / "run" / "validate")
    published = publish(recipe, folder / "run", drafter, folder / "checkpoints" / "tiny")
    return recipe, drafter, folder / "run", published


@pytest.fixture
def copied(published, tmp_path):
    """A copy of the published folder that a test may change."""
    return shutil.copytree(published[3], tmp_path / "tiny")


@pytest.fixture(scope="session")
def publish_pair(published):
    """Publishes a pair of a test's own, with the validation of `published`: its numbers are not looked at."""
    recipe, _, run_folder, _ = published

    def publish_anew(folder: Path, target: Target, model, changes: Recipe | None = None, **spec) -> Path:
        _silence_rows(target.model, target, len(target.tokenizer), None)
        target.model.save_pretrained(folder / "target")
        target.tokenizer.save_pretrained(folder / "target")
        if model is not None:
            _silence_rows(model, target, len(target.tokenizer), len(target.tokenizer) + 1)
        drafter = make_drafter_folder(folder / "drafter", target, model, **spec)
        own = dataclasses.replace(recipe.target, model=str(folder / "target"))
        return publish(dataclasses.replace(changes or recipe, target=own), run_folder, drafter, folder / "tiny")

    return publish_anew


@torch.no_grad()
def _silence_rows(model, target: Target, start: int, stop: int | None) -> None:
    """Makes rows without a token as they are in trained models: never the likeliest."""
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        layer.weight[start:stop] = layer.weight[: len(target.tokenizer)].mean(0)


@pytest.fixture(scope="session")
def causal(publish_pair, tmp_path_factory):
    """(target, published folder) of a drafter with causal blocks, another model than its target."""
    target = make_target()
    folder = tmp_path_factory.mktemp("causal")
    return target, publish_pair(folder, target, make_model(seed=3), block_attention="causal")
