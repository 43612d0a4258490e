"""Shapes of models: what a configuration says about weights, caches and arithmetic, without any weights.

Norms and biases are left out of all counts: together they are less than a tenth of a per cent.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only model with gated feed-forward layers and grouped key-value heads."""

    name: str
    num_layers: int
    width: int
    inner_width: int
    """Of the feed-forward layers."""
    num_heads: int
    num_key_value_heads: int
    head_width: int
    vocab_rows: int
    is_tied: bool
    """The head is the embedding."""

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        attention = 2 * self.width * self.head_width * (self.num_heads + self.num_key_value_heads)
        return attention + 3 * self.width * self.inner_width

    @property
    def head_parameters(self) -> int:
        """Weights of the output layer."""
        return self.vocab_rows * self.width

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.num_layers * self.layer_parameters + self.head_parameters * (1 if self.is_tied else 2)

    @property
    def cache_values_per_token(self) -> int:
        """Numbers that a token leaves in the key-value cache."""
        return 2 * self.num_layers * self.num_key_value_heads * self.head_width

    def with_layers(self, num_layers: int) -> "ModelShape":
        """The same model with fewer layers."""
        if not 1 <= num_layers <= self.num_layers:
            raise WorkbenchError(f"--layers is {num_layers}, but {self.name} has {self.num_layers} layers")
        return dataclasses.replace(self, num_layers=num_layers)


def shape_from_config(name: str, config: Any) -> ModelShape:
    """Shape of a `transformers` configuration."""
    num_heads = config.num_attention_heads
    return ModelShape(
        name=name,
        num_layers=config.num_hidden_layers,
        width=config.hidden_size,
        inner_width=config.intermediate_size,
        num_heads=num_heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        vocab_rows=config.vocab_size,
        is_tied=bool(config.tie_word_embeddings),
    )


def known_shape(name: str) -> ModelShape | None:
    """A built-in shape by its name, with or without organisation: `qwen3-8b`, `Qwen/Qwen3-8B`."""
    return SHAPES.get(name.rsplit("/", 1)[-1].lower())


def _qwen3(
    name: str, num_layers: int, width: int, inner_width: int, num_heads: int, *, is_tied: bool
) -> tuple[str, ModelShape]:
    shape = ModelShape(
        name=name,
        num_layers=num_layers,
        width=width,
        inner_width=inner_width,
        num_heads=num_heads,
        num_key_value_heads=8,
        head_width=128,
        vocab_rows=151936,
        is_tied=is_tied,
    )
    return name.lower(), shape


SHAPES: dict[str, ModelShape] = dict(
    (
        _qwen3("Qwen3-0.6B", 28, 1024, 3072, 16, is_tied=True),
        _qwen3("Qwen3-1.7B", 28, 2048, 6144, 16, is_tied=True),
        _qwen3("Qwen3-4B", 36, 2560, 9728, 32, is_tied=True),
        _qwen3("Qwen3-8B", 36, 4096, 12288, 32, is_tied=False),
        _qwen3("Qwen3-14B", 40, 5120, 17408, 40, is_tied=False),
        _qwen3("Qwen3-32B", 64, 5120, 25600, 64, is_tied=False),
    )
)
"""From the config.json that each model is published with on the hub (organisation Qwen)."""
