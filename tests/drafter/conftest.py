"""A tiny target of each supported family, with a tokenizer whose ids are 0 to 59."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from workbench.targets import Target

VOCABULARY = 60


@pytest.fixture
def make_target():
    def make(family: str = "qwen3", num_rows: int = 64, num_layers: int = 4, tied: bool = True, **changes) -> Target:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "max_position_embeddings": 128,
            "rope_parameters": {"rope_type": "default", "rope_theta": 12345.0},
        }
        if family == "qwen3":
            sizes["head_dim"] = 8
        config = AutoConfig.for_model(
            family,
            vocab_size=num_rows,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=num_layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
            **{**sizes, **changes},
        )
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
        vocabulary = {f"t{index}": index for index in range(VOCABULARY)}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")), eos_token="t1", pad_token="t0"
        )
        return Target(
            model=model,
            tokenizer=tokenizer,
            identity=f"tiny-{family}",
            revision=None,
            template_hash="0123456789abcdef",
            thinking=False,
            stop_ids=frozenset({1}),
        )

    return make
