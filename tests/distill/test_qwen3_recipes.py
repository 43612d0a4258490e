"""The shipped Qwen3 recipes, on stand-ins: the same architecture fields, narrow layers, the tests' vocabulary."""

import dataclasses
import math

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.conftest import make_spec, make_target, make_tokenizer
from workbench.cost.shapes import SHAPES
from workbench.distill.fit import fit_drafter
from workbench.drafter.layers import build_drafter, drop_layers
from workbench.recipe import load_recipe

VOCAB_ROWS = 40
PARENTS = {
    "qwen3-8b-d3d-8b": "qwen3-8b",
    "qwen3-8b-d3d-1.7b": "qwen3-1.7b",
    "qwen3-8b-d3d-31l": "qwen3-8b",
    "qwen3-32b-d3d-8b": "qwen3-8b",
    "qwen3-32b-d3d-1.7b": "qwen3-1.7b",
    "qwen3-32b-d3d-31l": "qwen3-8b",
}


def make_stand_in(name: str) -> Qwen3ForCausalLM:
    """Depth, tying, groups of heads and positions are those of the shape; heads are wider than the hidden states."""
    shape = SHAPES[name]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_ROWS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads // shape.num_key_value_heads * 2,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=shape.is_tied,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval().requires_grad_(False)


@pytest.mark.parametrize("name", sorted(PARENTS))
def test_a_shipped_recipe_trains_on_a_stand_in(name, corpus, tmp_path):
    recipe = load_recipe(name)
    size = name.split("-")[1]
    assert recipe.target.model == f"Qwen/Qwen3-{size.upper()}"
    assert recipe.target.thinking is False
    target = dataclasses.replace(make_target(), model=make_stand_in(f"qwen3-{size}"))
    parent = recipe.drafter.parent
    if parent == "target":
        assert PARENTS[name] == f"qwen3-{size}"
    else:
        assert parent.lower() == f"qwen/{PARENTS[name]}"
        parent = str(tmp_path / "parent")
        make_stand_in(PARENTS[name]).save_pretrained(parent)
        make_tokenizer(len(target.tokenizer)).save_pretrained(parent)
    recipe = dataclasses.replace(recipe, drafter=dataclasses.replace(recipe.drafter, parent=parent))
    # One device instead of eight, and precision of any CPU; what is left is the recipe's own.
    options = dataclasses.replace(recipe.distill, steps=2, devices=1, strategy="auto", precision="32-true")
    drafter = build_drafter(target, recipe)
    few = dataclasses.replace(corpus, held_out=corpus.held_out.select(range(4)))
    before = drafter.model.get_input_embeddings().weight.detach().clone()
    report = fit_drafter(drafter, target, few, options, tmp_path / "fit", recipe.seed, recipe.decode.draft_length)
    assert report.steps == 2
    assert math.isfinite(report.final["denoising"])
    assert not torch.equal(drafter.model.get_input_embeddings().weight, before)
    assert drafter.spec == dataclasses.replace(
        make_spec(target),
        block_size=16,
        target_fingerprint=target.fingerprint,
        parent=target.identity if recipe.drafter.parent == "target" else parent,
        kept_layers=list(range(SHAPES[PARENTS[name]].num_layers)),
        parent_num_layers=SHAPES[PARENTS[name]].num_layers,
    )
    for number in recipe.prune.drop_layers:
        assert drop_layers(drafter, range(7, 7 + number)).num_layers == 31
