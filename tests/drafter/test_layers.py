import copy
import dataclasses
from typing import Any

import pytest
import torch

from workbench.drafter.layers import build_drafter, drop_layers, select_layers
from workbench.drafter.model import load_drafter, save_drafter
from workbench.errors import WorkbenchError
from workbench.recipe import Recipe, load_recipe

FAMILIES = ("qwen3", "qwen2", "llama")


def make_recipe(**drafter_options) -> Recipe:
    recipe = load_recipe("quickstart")
    return dataclasses.replace(recipe, drafter=dataclasses.replace(recipe.drafter, **drafter_options))


def logits(model, ids=((5, 9, 2, 40),)) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor(ids)).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_of_all_layers_computes_what_the_target_computes(make_target, family):
    target = make_target(family)
    drafter = build_drafter(target, make_recipe())
    assert torch.equal(logits(drafter.model)[..., :60], logits(target.model)[..., :60])
    assert all(parameter.requires_grad for parameter in drafter.model.parameters())


def test_training_a_drafter_leaves_the_target_alone(make_target):
    target = make_target()
    before = logits(target.model)
    drafter = build_drafter(target, make_recipe())
    with torch.no_grad():
        for parameter in drafter.model.parameters():
            parameter.add_(1.0)
    assert torch.equal(logits(target.model), before)
    assert not any(parameter.requires_grad for parameter in target.model.parameters())


def test_the_mask_takes_the_first_unused_row(make_target):
    target = make_target(num_rows=64)
    drafter = build_drafter(target, make_recipe())
    weight = drafter.model.get_input_embeddings().weight
    assert drafter.spec.mask_token_id == 60
    assert drafter.model.config.vocab_size == len(weight) == 64
    torch.testing.assert_close(weight[60], weight[:60].mean(0))


@pytest.mark.parametrize("tied", [True, False])
def test_the_mask_gets_a_new_row_where_none_is_unused(make_target, tmp_path, tied):
    target = make_target(num_rows=60, tied=tied)
    drafter = build_drafter(target, make_recipe())
    assert drafter.spec.mask_token_id == 60
    assert drafter.model.config.vocab_size == 61
    assert target.model.config.vocab_size == 60
    save_drafter(drafter, tmp_path)
    assert torch.equal(logits(load_drafter(tmp_path).model), logits(drafter.model))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pruned_model_is_reloaded_bit_for_bit(make_target, tmp_path, family):
    drafter = drop_layers(build_drafter(make_target(family, num_layers=6), make_recipe()), [1, 3])
    save_drafter(drafter, tmp_path)
    reloaded = load_drafter(tmp_path)
    assert reloaded.spec == drafter.spec
    assert reloaded.model.config.num_hidden_layers == 4
    assert torch.equal(logits(reloaded.model), logits(drafter.model))
    assert len(getattr(reloaded.model.config, "layer_types", None) or "four") == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pruned_model_decodes_with_a_cache(make_target, family):
    drafter = drop_layers(build_drafter(make_target(family), make_recipe()), [0, 2])
    model = drafter.model.eval()
    with torch.no_grad():
        first = model(input_ids=torch.tensor([[5, 9, 2]]), use_cache=True)
        second = model(input_ids=torch.tensor([[40]]), past_key_values=first.past_key_values)
    torch.testing.assert_close(second.logits[:, -1], logits(model)[:, -1])
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == [0, 1]


def test_layers_are_dropped_by_their_index_in_the_parent(make_target):
    drafter = build_drafter(make_target(num_layers=6), make_recipe(layers=[0, 1, 3, 4, 5]))
    smaller = drop_layers(drop_layers(drafter, [1]), [4])
    assert drafter.spec.kept_layers == [0, 1, 3, 4, 5]
    assert smaller.spec.kept_layers == [0, 3, 5]
    assert smaller.spec.parent_num_layers == 6
    expected = build_drafter(make_target(num_layers=6), make_recipe(layers=[0, 3, 5]))
    assert torch.equal(logits(smaller.model), logits(expected.model))


def test_dropping_leaves_the_larger_drafter_as_it_was(make_target):
    drafter = build_drafter(make_target(), make_recipe())
    before, config = logits(drafter.model), copy.deepcopy(drafter.model.config.to_dict())
    smaller = drop_layers(drafter, [1])
    with torch.no_grad():
        smaller.model.get_input_embeddings().weight.zero_()
    assert torch.equal(logits(drafter.model), before)
    assert drafter.model.config.to_dict() == config


@pytest.mark.parametrize(("dropped", "message"), [([7], r"\[7\] cannot be dropped"), ([0, 1, 2, 3], "without any")])
def test_impossible_drops_are_refused(make_target, dropped, message):
    with pytest.raises(WorkbenchError, match=message):
        drop_layers(build_drafter(make_target(), make_recipe()), dropped)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("all", [0, 1, 2, 3, 4, 5]),
        ("evenly:3", [0, 2, 5]),
        ("evenly:1", [0]),
        ("evenly:6", [0, 1, 2, 3, 4, 5]),
        ([1, 4], [1, 4]),
    ],
)
def test_layer_choices(choice, expected):
    assert select_layers(choice, 6) == expected


@pytest.mark.parametrize("choice", ["evenly:7", [0, 6], [2, 1], [1, 1], []])
def test_layer_choices_that_the_parent_cannot_fill_are_refused(choice):
    with pytest.raises(WorkbenchError, match=r"drafter\.layers"):
        select_layers(choice, 6)


STRETCHED = {"rope_theta": 54321.0, "factor": 4.0, "original_max_position_embeddings": 32}
PARENTS = {
    "a base of its own": ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 54321.0}}),
    "yarn": ("qwen3", {"rope_parameters": {"rope_type": "yarn", **STRETCHED}, "max_position_embeddings": 512}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", **STRETCHED}}),
    "llama3": (
        "llama",
        {"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **STRETCHED}},
    ),
    "a part of each head": ("stablelm", {"partial_rotary_factor": 0.5}),
    "windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}),
}
SAVED_ANEW = {"num_hidden_layers", "layer_types", "drafter", "architectures", "_name_or_path", "transformers_version"}


@pytest.mark.parametrize("from_folder", [False, True], ids=["target", "sibling"])
@pytest.mark.parametrize("name", PARENTS)
def test_every_field_of_the_parent_but_its_depth_is_carried_over(make_target, tmp_path, name, from_folder):
    family, changes = PARENTS[name]
    target = parent = make_target(family, **changes)
    options: dict[str, Any] = {"layers": [0, 1, 3]}
    if from_folder:
        target = make_target(family)
        parent.model.save_pretrained(tmp_path / "parent")
        parent.tokenizer.save_pretrained(tmp_path / "parent")
        options["parent"] = str(tmp_path / "parent")
    save_drafter(build_drafter(target, make_recipe(**options)), tmp_path / "drafter")
    model = load_drafter(tmp_path / "drafter").model

    before, after = parent.model.config.to_dict(), model.config.to_dict()
    differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert differing <= SAVED_ANEW
    if before.get("layer_types"):
        assert after["layer_types"] == [before["layer_types"][layer] for layer in (0, 1, 3)]
    rotations, own = parent.model.base_model.rotary_emb, model.base_model.rotary_emb
    assert torch.equal(own.inv_freq, rotations.inv_freq)
    assert own.attention_scaling == rotations.attention_scaling


@pytest.mark.parametrize("name", PARENTS)
def test_a_whole_copy_computes_what_its_parent_computes_at_far_positions(make_target, tmp_path, name):
    family, changes = PARENTS[name]
    target = make_target(family, **changes)
    save_drafter(build_drafter(target, make_recipe()), tmp_path)
    ids = [torch.randint(60, (100,), generator=torch.Generator().manual_seed(0)).tolist()]
    torch.testing.assert_close(logits(load_drafter(tmp_path).model, ids)[..., :60], logits(target.model, ids)[..., :60])


def test_random_weights_keep_the_shape_and_follow_the_seed(make_target):
    target = make_target()
    first, second = (build_drafter(target, make_recipe(initial_weights="random", layers="evenly:2")) for _ in range(2))
    assert first.num_layers == 2
    assert torch.equal(logits(first.model), logits(second.model))
    assert not torch.allclose(logits(first.model)[..., :60], logits(target.model)[..., :60])


def test_a_sibling_with_the_same_tokenizer_is_a_parent(make_target, tmp_path):
    target, sibling = make_target(num_layers=4), make_target(num_layers=2)
    sibling.model.save_pretrained(tmp_path)
    sibling.tokenizer.save_pretrained(tmp_path)
    drafter = build_drafter(target, make_recipe(parent=str(tmp_path)))
    assert drafter.num_layers == drafter.spec.parent_num_layers == 2
    assert drafter.spec.parent == str(tmp_path)
    assert torch.equal(logits(drafter.model)[..., :60], logits(sibling.model)[..., :60])


def test_a_parent_with_another_tokenizer_is_refused(make_target, tmp_path):
    target, sibling = make_target(), make_target()
    sibling.tokenizer.add_tokens(["t99"])
    sibling.model.save_pretrained(tmp_path)
    sibling.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(WorkbenchError, match=r"another tokenizer .*'t99' is 60 there and None"):
        build_drafter(target, make_recipe(parent=str(tmp_path)))


def test_a_parent_that_is_not_there_is_one_line(make_target, tmp_path):
    with pytest.raises(WorkbenchError, match=r"drafter\.parent .* cannot be loaded") as caught:
        build_drafter(make_target(), make_recipe(parent=str(tmp_path / "nowhere")))
    assert "\n" not in str(caught.value)
