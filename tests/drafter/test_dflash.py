"""The DFlash family: the published layout, agreement with an independent implementation, and training = decoding."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from tests.conftest import make_model, make_target
from workbench.drafter.dflash import (
    DFlashModel,
    build_dflash,
    choose_mask_token_id,
    is_dflash,
    load_dflash,
    save_dflash,
)
from workbench.errors import WorkbenchError

FEATURES = 3 * 32


def make_published(folder, *, block_size=5, layers=2, seed=0, **config_changes):
    """A tiny random folder as z-lab publishes them: keys and tensor names by hand, nothing of ours."""
    shape = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 40, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "hidden_act": "silu",
    }  # fmt: skip
    config = {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        **shape,
        "layer_types": ["full_attention"] * layers,
        "block_size": block_size,
        "num_target_layers": 3,
        "dflash_config": {"mask_token_id": 36, "target_layer_ids": [0, 1, 2]},
        "dtype": "bfloat16",
        **config_changes,
    }
    generator = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(size, generator=generator) * 0.2

    weights = {"fc.weight": draw(32, FEATURES)}
    weights |= {f"{name}.weight": 1 + draw(32) for name in ("hidden_norm", "norm")}
    for layer in range(layers):
        prefix = f"layers.{layer}."
        for name, size in (("q_proj", (32, 32)), ("k_proj", (16, 32)), ("v_proj", (16, 32)), ("o_proj", (32, 32))):
            weights[f"{prefix}self_attn.{name}.weight"] = draw(*size)
        for name, size in (("gate_proj", (48, 32)), ("up_proj", (48, 32)), ("down_proj", (32, 48))):
            weights[f"{prefix}mlp.{name}.weight"] = draw(*size)
        for name in ("q_norm", "k_norm"):
            weights[f"{prefix}self_attn.{name}.weight"] = 1 + draw(8)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = 1 + draw(32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def test_a_published_folder_loads_as_it_is(tmp_path):
    target = make_target()
    folder = make_published(tmp_path / "published")
    assert is_dflash(folder)
    drafter = load_dflash(folder, target)
    assert (drafter.spec.block_size, drafter.spec.mask_token_id, drafter.spec.target_layer_ids) == (5, 36, [0, 1, 2])
    assert drafter.spec.block_attention == "bidirectional"
    assert drafter.spec.vocab_size is None
    for name, weight in load_file(folder / "model.safetensors").items():
        assert torch.equal(drafter.model.state_dict()[name], weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "width 64, the target's have 32"),
        ({"num_target_layers": 36}, "a target of 36 layers, this one has 3"),
        ({"dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1]}}, "mask id 151669 has no row"),
        ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id"),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, "sliding-window"),
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, "has unknown layers.1."),
    ],
)
def test_a_folder_that_does_not_fit_is_one_line(tmp_path, changes, message):
    with pytest.raises(WorkbenchError, match=message) as failure:
        load_dflash(make_published(tmp_path / "published", **changes), make_target())
    assert "\n" not in str(failure.value)


def test_what_is_saved_is_the_published_layout_and_comes_back(tmp_path):
    target = make_target()
    drafter = build_dflash(target, num_layers=2, block_size=9, num_read_layers=5)
    save_dflash(drafter, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["architectures"] == ["DFlashDraftModel"]
    assert values["block_size"] == 9
    assert set(values["dflash_config"]) == {"mask_token_id", "target_layer_ids", "causal"}
    published = make_published(tmp_path / "published")
    assert load_file(tmp_path / "model.safetensors").keys() == load_file(published / "model.safetensors").keys()
    again = load_dflash(tmp_path, target)
    assert again.spec == drafter.spec
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), drafter.model.parameters(), strict=True))


def test_layers_start_as_copies_of_the_target():
    target = make_target()
    drafter = build_dflash(target, num_layers=2, block_size=9, num_read_layers=2)
    own, theirs = drafter.model.layers[1].state_dict(), target.model.model.layers[2].state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    llama = build_dflash(make_target("llama"), num_layers=1, block_size=9, num_read_layers=2)
    assert torch.equal(llama.model.state_dict()["layers.0.self_attn.q_norm.weight"], torch.ones(8))


def test_the_mask_is_an_unused_row_or_a_special_token_that_ends_nothing():
    assert choose_mask_token_id(make_target()) == 36
    full = make_target(vocab_size=40)  # every row of the embedding is a token
    assert choose_mask_token_id(full) == 0  # <pad>; <end> would end a response


def test_it_computes_what_the_implementation_in_transformers_computes(tmp_path):
    """An independent reference of the same architecture, under another name, with its own attention and masks."""
    reference = pytest.importorskip("transformers.models.muse_glimmer_assistant")
    target = make_target()
    drafter = load_dflash(make_published(tmp_path / "published"), target)
    config = reference.configuration_muse_glimmer_assistant.MuseGlimmerAssistantConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, max_position_embeddings=256, rms_norm_eps=1e-6, target_layer_ids=[0, 1, 2], block_size=5,
        mask_token_id=36, layer_types=["full_attention"] * 2, hidden_act="silu", attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    model = reference.modeling_muse_glimmer_assistant.MuseGlimmerAssistantModel(config).eval()
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    model.load_state_dict({renamed.get(name, name): weight for name, weight in drafter.model.state_dict().items()})
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(1, 11, FEATURES, generator=generator)
    block = torch.randn(1, 5, 32, generator=generator)
    positions = torch.arange(16)[None]
    with torch.no_grad():
        expected = model(noise_embeds=block, context_hidden_states=features, position_ids=positions).last_hidden_state
        visible = torch.ones((1, 1, 5, 16), dtype=torch.bool)
        ours = drafter.model(block, positions[:, 11:], features, positions[:, :11], visible)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_blocks_of_one_pass_do_not_see_one_another():
    model = DFlashModel(
        Qwen3Config(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=8, vocab_size=40, max_position_embeddings=256,
        ),
        3,
        make_model(),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 9, FEATURES, generator=generator)
    blocks = torch.randn(1, 2, 4, 32, generator=generator)
    starts = [5, 8]
    positions = torch.stack([torch.arange(start, start + 4) for start in starts])[None]
    visible = torch.zeros((1, 2, 4, 9 + 4), dtype=torch.bool)
    for index, start in enumerate(starts):
        visible[0, index, :, :start] = True
        visible[0, index, :, 9:] = True
    with torch.no_grad():
        together = model(blocks.flatten(1, 2), positions.flatten(1), features, torch.arange(9)[None], visible)
        for index, start in enumerate(starts):
            alone = model(
                blocks[:, index],
                positions[:, index],
                features[:, :start],
                torch.arange(start)[None],
                torch.ones((1, 1, 4, start + 4), dtype=torch.bool),
            )
            torch.testing.assert_close(together[:, 4 * index : 4 * index + 4], alone)
