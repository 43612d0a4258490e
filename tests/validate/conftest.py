import pytest

from tests.validate.tiny import make_recipe, write_pair
from workbench.validate import validate


@pytest.fixture(scope="session")
def validated(tmp_path_factory):
    """(recipe, folder, result) of a tiny validation; the result is in folder/validate too."""
    folder = tmp_path_factory.mktemp("validated")
    target, drafter = write_pair(folder)
    recipe = make_recipe(folder, target)
    return recipe, folder, validate(recipe, {"pruned": drafter, "unpruned": drafter}, folder / "validate")
