import pytest
import yaml

from tests.conftest import make_model
from tests.prune.recipes import make_recipe
from workbench.cli import main
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


RECIPE = {
    "name": "tiny",
    "target": {"model": "target"},
    "corpus": {"sources": [{"prompts": "problems"}], "num_responses": 4},
    "drafter": {"layers": "evenly:3"},
    "distill": {"steps": 10},
    "prune": {"drop_layers": [1]},
    "decode": {},
    "validate": {"suites": []},
}


@pytest.mark.parametrize(
    ("override", "value", "words"),
    [
        ("drop_layers", "[2]", "drop_layers is [2], but the drafter has 3 layers"),
        ("protect", "[0, 1, 2]", "leaves none of the drafter's 3 layers"),
        ("importance", "magic", "prune.importance"),
        ("storage", "sqlite:////proc/nowhere/studies.db", "prune.storage sqlite:////proc/nowhere/studies.db cannot be"),
        ("trials", "0", "prune.trials"),
    ],
)
def test_a_run_refuses_it_before_any_stage_starts(override, value, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_model(layers=6).save_pretrained("target")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    capsys.readouterr()  # saving shows a bar
    assert main(["run", "tiny.yaml", f"--prune.{override}", value]) == 2
    output = capsys.readouterr()
    assert words in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert not (tmp_path / "runs").exists()
