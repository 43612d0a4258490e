import pytest

from tests.prune.recipes import make_recipe
from workbench.errors import WorkbenchError
from workbench.prune.request import check_request, droppable_layers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_layers": [5]}, r"prune.drop_layers is \[5\].* 6 layers.*leaves 4: use 1 to 4"),
        ({"drop_layers": [6], "protect": []}, r"leaves 6: use 1 to 5"),
        ({"drop_layers": [1], "protect": [0, 1, 2, 3, 4, 5]}, "leaves none of the drafter's 6 layers"),
        ({"drop_layers": [1], "protect": [7]}, r"protect is \[7\].*positions -6 to 5"),
        ({"drop_layers": [2], "widths": [0.5], "layers_per_round": 1}, "widths and prune.layers_per_round exclude"),
        ({"drop_layers": [2], "draft_lengths": [4, 6]}, r"draft_lengths is \[4, 6\].*block_size 5"),
        ({"drop_layers": [2, 2]}, "name each number of layers once"),
        ({"drop_layers": [1], "finalists": 9, "trials": 3}, r"finalists is 9.*trials 3"),
    ],
)
def test_impossible_requests_are_one_line(options, message):
    with pytest.raises(WorkbenchError, match=message) as error:
        check_request(make_recipe(**options), [0, 2, 4, 6, 8, 10])
    assert "\n" not in str(error.value)


def test_positions_are_of_the_drafter_and_layers_of_the_parent():
    assert droppable_layers(make_recipe(protect=[0, -1, 2]), [0, 2, 4, 6, 8, 10]) == [2, 6, 8]


def test_a_possible_request_passes():
    check_request(make_recipe(drop_layers=[1, 4]), [0, 2, 4, 6, 8, 10])
    check_request(make_recipe(drop_layers=[]), [0])
