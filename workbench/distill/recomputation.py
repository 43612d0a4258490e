"""Activations that are computed again for the gradient instead of being kept: layer by layer, as in the first pass."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn


@contextlib.contextmanager
def recomputing(model: Any) -> Iterator[None]:
    """Within, a causal LM in training mode keeps its layers' inputs alone."""
    contexts = functools.partial(_pass_and_repetition, model)
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()


def _pass_and_repetition(model: Any) -> tuple[Any, Any]:
    """Called in a layer's first pass: by its repetition, attention and weights are no longer those of the pass."""
    attention = model.config._attn_implementation
    weights = dict(model.base_model.named_parameters(remove_duplicate=False))
    stand_ins = {name: weight for name, weight in weights.items() if not isinstance(weight, nn.Parameter)}
    return contextlib.nullcontext(), _repetition(model, attention, stand_ins)


@contextlib.contextmanager
def _repetition(model: Any, attention: str, weights: Mapping[str, Tensor]) -> Iterator[None]:
    places = []
    for name, weight in weights.items():
        owner, _, leaf = name.rpartition(".")
        parameters = model.base_model.get_submodule(owner)._parameters
        places.append((parameters, leaf, parameters[leaf], weight))
    previous = model.config._attn_implementation
    model.config._attn_implementation = attention
    for parameters, leaf, _, weight in places:
        parameters[leaf] = weight
    try:
        yield
    finally:
        model.config._attn_implementation = previous
        for parameters, leaf, own_weight, _ in places:
            parameters[leaf] = own_weight
