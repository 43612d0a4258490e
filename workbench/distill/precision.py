"""In which precision a training computes: weights, gradients and optimizer always stay float32."""

from typing import Any

import torch
from torch.func import functional_call

from workbench.distill.losses import Head
from workbench.distill.processes import is_sharded
from workbench.host import multiplies_bfloat16
from workbench.recipe import DistillOptions


def choose_precision(precision: str) -> str:
    """`auto` is `bf16-true` where the hardware multiplies bfloat16 numbers, else `32-true`."""
    if precision != "auto":
        return precision
    return "bf16-true" if multiplies_bfloat16() else "32-true"


def computes_in_bfloat16(options: DistillOptions) -> bool:
    """All of a pass, with weights that are cast for it: autocast works on whole weights only."""
    precision = choose_precision(options.precision)
    return precision == "bf16-true" or (precision == "bf16-mixed" and is_sharded(options))


def trainer_precision(options: DistillOptions) -> Any:
    """What Lightning is told: the casts of `bf16-true` are ours, or the weights themselves would be rounded."""
    return "32-true" if computes_in_bfloat16(options) else choose_precision(options.precision)


class Bfloat16Copy:
    """Stands in for a causal LM: its weights as they are now, in bfloat16; gradients reach the weights themselves.

    Unlike autocast it keeps activations between matrix products in bfloat16 too: half the memory traffic.
    """

    dtype = torch.bfloat16

    def __init__(self, model: Any):
        self.config = model.config
        self._base, self._head = model.base_model, model.get_output_embeddings()
        # By identity: a head that is tied to the embedding shares its copy.
        copies = {id(weight): weight.to(torch.bfloat16) for weight in model.parameters()}
        self._base_weights, self._head_weights = (
            {name: copies[id(weight)] for name, weight in module.named_parameters(remove_duplicate=False)}
            for module in (self._base, self._head)
        )

    def base_model(self, **inputs: Any) -> Any:
        """The model without its head."""
        return functional_call(self._base, self._base_weights, kwargs=inputs)

    def get_output_embeddings(self) -> Head:
        """The head."""
        return lambda hidden_RD: functional_call(self._head, self._head_weights, (hidden_RD,))
