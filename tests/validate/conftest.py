import pytest

from tests.decode.test_decoder import FREE
from tests.validate.tiny import make_recipe, write_pair
from workbench.decode import assembly
from workbench.decode.worker import WorkerDrafts
from workbench.validate import validate


@pytest.fixture(scope="session")
def validated(tmp_path_factory):
    """(recipe, folder, result) of a tiny validation; the result is in folder/validate too."""
    folder = tmp_path_factory.mktemp("validated")
    target, drafter = write_pair(folder)
    recipe = make_recipe(folder, target)
    with pytest.MonkeyPatch.context() as patch:
        # Whether drafting ahead pays is decided by measured times, which say nothing about models of this size.
        patch.setattr(assembly, "measure_drafter_costs", lambda *_: FREE)
        patch.setattr(WorkerDrafts, "measure_slowdown", lambda drafts, *_: setattr(drafts, "slowdown", 0.25))
        return recipe, folder, validate(recipe, {"pruned": drafter, "unpruned": drafter}, folder / "validate")
