import json

import pytest

from tests.conftest import make_target
from tests.distill.conftest import make_samples
from workbench.corpus.responses import Corpus
from workbench.cost import ablation
from workbench.cost.ablation import INGREDIENTS, Variant, list_variants, measure_ablation
from workbench.errors import WorkbenchError
from workbench.recipe import find_problems, load_recipe


@pytest.fixture
def recipe(tmp_path):
    return load_recipe(
        "quickstart",
        ["--runs", str(tmp_path), "--name", "tiny", "--distill.batch_size", "2", "--distill.blocks_per_sequence", "2",
         "--distill.precision", "32-true"],
    )  # fmt: skip


@pytest.fixture
def trained(monkeypatch):
    """Names and seeds of what is trained; the table has two variants, on a tiny target."""
    corpus = Corpus(train=make_samples(8, 0), held_out=make_samples(4, 1), facts={"fingerprint": "0"})
    monkeypatch.setattr(ablation, "load_corpus", lambda folder: corpus)
    monkeypatch.setattr(ablation, "load_target", lambda options: make_target())
    monkeypatch.setattr(ablation, "INGREDIENTS", {"distill.masked_anchor_fraction": (0.0, 0.35)})
    journal: list[tuple[float, int]] = []
    fit = ablation.fit_drafter

    def noted(drafter, target, corpus, options, folder, seed, **more):
        journal.append((options.masked_anchor_fraction, seed))
        return fit(drafter, target, corpus, options, folder, seed, **more)

    monkeypatch.setattr(ablation, "fit_drafter", noted)
    return journal


def test_every_variant_changes_one_key_to_a_value_that_a_recipe_may_have():
    recipe = load_recipe("quickstart")
    variants = list_variants(recipe)
    assert variants[0].apply(recipe) == recipe
    assert {variant.key for variant in variants[1:]} == set(INGREDIENTS)
    assert len({variant.slug for variant in variants}) == len(variants)
    for variant in variants[1:]:
        changed = variant.apply(recipe)
        assert changed != recipe
        assert not find_problems(changed)
        section, name = str(variant.key).split(".")
        loaded = load_recipe("quickstart", [f"--{section}.{name}", str(json.dumps(variant.value)).strip('"')])
        assert loaded == changed


def test_the_weight_of_cross_entropy_is_no_ingredient_of_cross_entropy_alone():
    recipe = load_recipe("quickstart", ["--distill.denoising", "cross_entropy"])
    assert Variant("distill.cross_entropy_weight", 0.0) not in list_variants(recipe)


def test_an_interrupted_ablation_continues_and_ends_in_a_table(recipe, trained, monkeypatch):
    minutes = 0.002
    fit = ablation.fit_drafter

    def killed(drafter, target, corpus, options, folder, seed, **more):
        if len(trained) == 3:
            raise KeyboardInterrupt
        return fit(drafter, target, corpus, options, folder, seed, **more)

    with monkeypatch.context() as patch:
        patch.setattr(ablation, "fit_drafter", killed)
        with pytest.raises(KeyboardInterrupt):
            measure_ablation(recipe, minutes, 2)
    assert trained == [(0.35, 0), (0.0, 0), (0.35, 1)]
    partial = json.loads((recipe.run_folder / "ablation.json").read_text())
    assert [entry["seeds"] for entry in partial["variants"]] == [[0, 1], [0]]
    path = measure_ablation(recipe, minutes, 2)
    assert trained == [(0.35, 0), (0.0, 0), (0.35, 1), (0.0, 1)]
    result = json.loads(path.read_text())
    own, none_masked = result["variants"]
    assert own["seeds"] == none_masked["seeds"] == [0, 1]
    values = [entry["acceptance_masked"] for entry in result["results"] if entry["value"] == 0.0]
    low, high = none_masked["acceptance_masked"]["ci95"]
    assert none_masked["acceptance_masked"]["mean"] == pytest.approx(sum(values) / 2)
    assert (high - low) / 2 == pytest.approx(12.706 * abs(values[0] - values[1]) / 2, rel=1e-3)
    assert "| distill.masked_anchor_fraction: 0.0 | " in path.with_suffix(".md").read_text()
    assert path.with_suffix(".svg").read_text().startswith("<svg")
    assert not list((recipe.run_folder / "ablation" / "unfinished").iterdir())


def test_other_minutes_are_another_training(recipe, trained):
    measure_ablation(recipe, 0.002, 1)
    measure_ablation(recipe, 0.003, 1)
    assert len(trained) == 4


def test_a_budget_must_make_sense(recipe):
    with pytest.raises(WorkbenchError, match="must be above 0"):
        measure_ablation(recipe, 0, 3)
