"""Every shipped recipe loads; every mistake is one line with file, key, value and what is allowed."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from workbench.errors import WorkbenchError
from workbench.recipe import Recipe, load_recipe, recipe_from_dict

RECIPES = sorted(Path("recipes").rglob("*.yaml"))

VALUES = {
    "name": "tiny",
    "target": {"model": "org/model"},
    "corpus": {"sources": [{"prompts": "problems"}], "num_responses": 4},
    "drafter": {},
    "distill": {"steps": 10},
    "prune": {},
    "decode": {},
    "validate": {"suites": [{"name": "words", "source": {"prompts": "problems"}}]},
}


@pytest.fixture
def write(tmp_path):
    def write_changed(**changes):
        """Changes by dotted key with `__` for dots; a value of None removes the key."""
        values: Any = copy.deepcopy(VALUES)
        for key, value in changes.items():
            *path, last = key.split("__")
            place: Any = values
            for name in path:
                place = place[int(name)] if isinstance(place, list) else place[name]
            if value is None:
                del place[last]
            else:
                place[last] = value
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(values))
        return str(path)

    return write_changed


def test_there_are_recipes():
    assert {"quickstart", "smollm2-135m"} <= {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=str)
def test_shipped_recipe(path):
    recipe = load_recipe(str(path))
    assert recipe.name == path.stem, "the run folder is looked for under the file's name"
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(line.startswith(f"# {path.stem}:") for line in header), "says what it is for"
    assert any(line.startswith("# Needs:") for line in header)
    assert any(line.startswith("# Run:") and f"RECIPE={path.stem}" in line for line in header)


@pytest.mark.parametrize("path", RECIPES, ids=str)
def test_a_recipe_survives_its_manifest(path):
    recipe = load_recipe(str(path))
    assert recipe_from_dict(json.loads(json.dumps(recipe.as_dict()))) == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distill__stepz": 3}, "distill.stepz is no key: did you mean distill.steps? allowed are steps, max_minutes"),
        ({"distil": {}}, "distil is no key: did you mean distill? allowed are name, target, corpus"),
        ({"distill__qqq": 3}, "distill.qqq is no key: allowed are steps"),
        ({"distill__steps": "many"}, "distill.steps is 'many': expected an integer > 0"),
        ({"distill__steps": 0}, "distill.steps is 0: expected an integer > 0"),
        ({"distill__steps": 1.5}, "distill.steps is 1.5: expected an integer > 0"),
        ({"distill__steps": True}, "distill.steps is True: expected an integer > 0"),
        ({"distill__steps": None}, "distill.steps is missing: expected an integer > 0"),
        ({"target": None}, "target is missing: expected keys model, revision"),
        ({"target": "gpt"}, "target is 'gpt': expected keys model, revision"),
        ({"target__dtype": "fp8"}, "target.dtype is 'fp8': expected one of float32, bfloat16"),
        ({"target__thinking": "yes please"}, "target.thinking is 'yes please': expected true or false"),
        ({"corpus__top_p": 2}, "corpus.top_p is 2: expected a number > 0 and < 1 or 1"),
        ({"corpus__sources": "problems"}, "corpus.sources is 'problems': expected a list, each entry keys prompts"),
        ({"corpus__sources__0__weight": -1}, "corpus.sources.0.weight is -1: expected a number > 0"),
        ({"corpus__sources__0__promts": "x"}, "corpus.sources.0.promts is no key: did you mean"),
        ({"validate__suites__0__name": None}, "validate.suites.0.name is missing: expected text"),
        ({"prune__drop_layers": [0]}, "prune.drop_layers.0 is 0: expected an integer > 0"),
        ({"prune__retained_threshold": 1.5}, "prune.retained_threshold is 1.5: expected a number > 0 and < 1"),
        ({"drafter__layers": 3.5}, "drafter.layers is 3.5: expected text or a list, each entry an integer >= 0"),
        ({"drafter__layers": "some"}, "drafter.layers is 'some': use 'all', 'evenly:N'"),
        ({"decode__draft_length": 20}, "decode.draft_length is 20, but a block of drafter.block_size 9"),
        ({"name": "a/b"}, "name is 'a/b': use letters"),
        ({"corpus__sources": []}, "corpus.sources is empty"),
    ],
)
def test_mistakes_name_file_key_value_and_what_is_allowed(write, changes, message):
    path = write(**changes)
    with pytest.raises(WorkbenchError) as error:
        load_recipe(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)
    assert "typing" not in str(error.value)


def test_all_problems_are_said_at_once(write):
    with pytest.raises(WorkbenchError) as error:
        load_recipe(write(distill__steps=0, prune__trials=-1, seed="x"))
    assert all(key in str(error.value) for key in ("distill.steps", "prune.trials", "seed"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is no valid YAML"),
        ("- 1", "holds no recipe"),
        ("", "holds no recipe"),
    ],
)
def test_files_that_are_no_recipe(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(WorkbenchError, match=message):
        load_recipe(str(tmp_path / "x.yaml"))


def test_unknown_recipes_list_the_known_ones():
    with pytest.raises(WorkbenchError, match=r"no recipe recipes/nosuch.yaml; known recipes: .*quickstart"):
        load_recipe("nosuch")


def test_overrides(write):
    recipe = load_recipe(
        write(),
        [
            "--distill.steps",
            "50",
            "--distill.learning_rate=1e-4",
            "--corpus.sources.0.split",
            "test",
            "--prune.drop_layers",
            "[2,3]",
            "--target.revision",
            "1234",
            "--drafter.layers",
            "[0,2]",
            "--validate.suites.0.num_prompts",
            "3",
            "--corpus.server",
            "null",
            "--prune.protect",
            "[0,-1]",
        ],
    )
    assert recipe.distill.steps == 50
    assert recipe.distill.learning_rate == 1e-4
    assert recipe.corpus.sources[0].split == "test"
    assert recipe.prune.drop_layers == [2, 3]
    assert recipe.target.revision == "1234"
    assert recipe.drafter.layers == [0, 2]
    assert recipe.validate.suites[0].num_prompts == 3
    assert recipe.corpus.server is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--distill.step", "5"], "distill.step is no key: did you mean distill.steps?"),
        (["--distill.steps"], "--distill.steps has no value"),
        (["--distill.steps", "5x"], "distill.steps is '5x': expected an integer > 0"),
        (["distill.steps", "5"], "distill.steps is no override: write --section.key value"),
        (["--corpus.sources.4.split", "test"], "corpus.sources has no entry 4"),
        (["--name.first", "x"], "name is 'tiny' and has no keys"),
    ],
)
def test_wrong_overrides(write, overrides, message):
    with pytest.raises(WorkbenchError) as error:
        load_recipe(write(), overrides)
    assert message in str(error.value)
    assert " ".join(overrides) in str(error.value)


def test_a_bare_off_is_off(write):
    assert load_recipe(write(), ["--distill.autoregressive", "off"]).distill.autoregressive == "off"


def test_a_recipe_of_another_version_is_refused():
    with pytest.raises(ValueError, match="future is no key"):
        recipe_from_dict({**VALUES, "future": 1})
    assert isinstance(recipe_from_dict(VALUES), Recipe)
