import pytest

from tests.validate.tiny import make_recipe, write_pair
from workbench.publish import publish
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
    import shutil

    return shutil.copytree(published[3], tmp_path / "tiny")
