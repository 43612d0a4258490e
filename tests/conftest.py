"""Tiny targets and drafters that tests share: random weights, a few layers, no files from outside."""

import dataclasses
import os
from pathlib import Path

# Test processes share the cores: threads that wait must sleep, not spin. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from workbench.drafter.model import Drafter, DrafterSpec, save_drafter
from workbench.targets import Target, template_hash

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
SPECIAL = ["<pad>", "<end>", "<user>", "<assistant>"]


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    words = SPECIAL + [f"w{i}" for i in range(vocab_size - len(SPECIAL))]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    return fast


def make_model(
    kind: str = "qwen3",
    *,
    vocab_rows: int = 40,
    layers: int = 3,
    seed: int = 0,
    context: int = 256,
    scale: float = 3.0,
    tied: bool = True,
):
    """A random model whose output is neither constant nor flat."""
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": vocab_rows,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**shape)) if kind == "qwen3" else LlamaForCausalLM(LlamaConfig(**shape))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0, 0.05 * scale)
    return model.eval().requires_grad_(False)


def make_target(kind: str = "qwen3", *, vocab_size: int = 36, **model_options) -> Target:
    model = make_model(kind, **model_options)
    tokenizer = make_tokenizer(vocab_size)
    return Target(
        model=model,
        tokenizer=tokenizer,
        identity="tiny",
        revision=None,
        template_hash=template_hash(tokenizer, False),
        thinking=False,
        stop_ids=frozenset({1}),
    )


def make_spec(target: Target, **changes) -> DrafterSpec:
    vocab_size = len(target.tokenizer)
    spec = DrafterSpec(
        block_size=9,
        mask_token_id=vocab_size,
        block_attention="bidirectional",
        target="tiny",
        target_revision=None,
        target_fingerprint="0" * 16,
        template_hash=target.template_hash,
        thinking=False,
        vocab_size=vocab_size,
        kept_layers=list(range(target.config.num_hidden_layers)),
        parent="target",
        parent_num_layers=target.config.num_hidden_layers,
    )
    return dataclasses.replace(spec, **changes)


def make_drafter_folder(folder: Path, target: Target, model=None, **changes) -> Path:
    """A drafter folder; without a model of its own it is a copy of the target, which agrees with it now and then."""
    model = model if model is not None else make_model(vocab_rows=target.config.vocab_size)
    save_drafter(Drafter(model, make_spec(target, **changes)), folder, target.tokenizer)
    return folder


@pytest.fixture(scope="session")
def tiny_target() -> Target:
    return make_target()
