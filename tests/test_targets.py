"""Targets from folders, hubs and GGUF files; whatever is no target is one clear line."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.conftest import TEMPLATE, make_model, make_tokenizer
from workbench import gguf as gguf_targets
from workbench.errors import WorkbenchError
from workbench.recipe import TargetOptions
from workbench.targets import load_config, load_target, resolve_source


def save_target(folder, **options):
    make_model(**options).save_pretrained(folder)
    make_tokenizer(36).save_pretrained(folder)
    return folder


def write_gguf(path, model, tokenizer):
    """The tiny model as a llama.cpp file with Q8_0 matrices, as converters write it."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    tokens += ["w", "1"]  # what the one merge below is made of: a file without merges is not read
    tokens += [f"unused{i}" for i in range(config.vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") else 1 for token in tokens])
    writer.add_token_merges(["w 1"])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        values = tensor.float().numpy()
        for part, count in heads.items():
            if part in name:  # llama.cpp pairs neighbouring rows for its rotary embedding
                values = values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        renamed = names.get_name(name, try_suffixes=(".weight",))
        assert renamed is not None
        if values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(renamed, gguf.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
        else:
            writer.add_tensor(renamed, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def llama():
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def test_a_folder_is_loaded_with_its_template_and_stop_ids(tmp_path):
    folder = save_target(tmp_path / "model")
    target = load_target(TargetOptions(model=str(folder)))
    assert target.identity == "model"
    assert target.stop_ids == {1}
    assert target.encode_prompt("w1 w2") == make_tokenizer(36).encode("<user> w1 w2 <end> <assistant>")


def test_the_fingerprint_is_that_of_the_weights_in_every_precision(tmp_path):
    folder = save_target(tmp_path / "model")
    single = load_target(TargetOptions(model=str(folder)))
    half = load_target(TargetOptions(model=str(folder)), dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    assert single.fingerprint == half.fingerprint
    other = save_target(tmp_path / "other" / "model", seed=1)
    assert load_target(TargetOptions(model=str(other))).fingerprint != single.fingerprint


def test_a_gguf_file_becomes_a_plain_model_in_the_cache(tmp_path, monkeypatch, llama, capsys):
    monkeypatch.setenv(gguf_targets.CACHE_VARIABLE, str(tmp_path / "cache"))
    path = tmp_path / "files" / "tiny.gguf"
    path.parent.mkdir()
    write_gguf(path, llama, make_tokenizer(36))
    target = load_target(TargetOptions(model=str(path)))
    ids = torch.tensor([[4, 9, 17, 5]])
    expected, found = llama(ids).logits, target.model(ids).logits
    assert (expected - found).abs().max() < 0.02 * expected.abs().max(), "Q8_0 and bfloat16 round, no more"
    assert target.tokenizer.chat_template == TEMPLATE
    assert 1 in target.stop_ids
    assert "quantization_config" not in json.loads((next((tmp_path / "cache").iterdir()) / "config.json").read_text())
    target.model.save_pretrained(tmp_path / "saved")
    assert "dequantising" in capsys.readouterr().out
    assert resolve_source(str(path.parent)) == resolve_source(str(path)), "a folder with one file is that file"
    load_target(TargetOptions(model=str(path)))
    assert "dequantising" not in capsys.readouterr().out, "the second time it comes from the cache"


def test_a_broken_gguf_file_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(gguf_targets.CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(WorkbenchError, match=r"bad.gguf cannot be read as GGUF") as error:
        load_target(TargetOptions(model=str(tmp_path / "bad.gguf")))
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("*"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("checkpoints/nosuch", "checkpoints/nosuch does not exist: a recipe's header says how to get its target"),
        ("./nosuch", "does not exist"),
        ("/no/such/model.gguf", "does not exist"),
        ("empty", "neither a config.json nor one .gguf file"),
        ("notes.txt", "no folder in transformers format and no .gguf file"),
    ],
)
def test_wrong_paths(tmp_path, monkeypatch, model, message):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("notes.txt").write_text("x")
    with pytest.raises(WorkbenchError, match=message) as error:
        load_target(TargetOptions(model=model))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "model",
    [
        BertForMaskedLM(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)),
        T5ForConditionalGeneration(T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=1)),
    ],
    ids=["encoder-only", "encoder-decoder"],
)
def test_models_that_are_no_decoder_are_refused(tmp_path, model):
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(WorkbenchError, match="only decoder-only causal language models"):
        load_config(TargetOptions(model=str(tmp_path / "model")))


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WorkbenchError, match="no-such-org/model: the hub cannot be reached") as error:
        load_target(TargetOptions(model="no-such-org/model"))
    assert "\n" not in str(error.value)
