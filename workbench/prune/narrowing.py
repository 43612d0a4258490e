"""Narrower feed-forward layers: the neurons that add least to the residual stream go, as many in every layer.

A neuron's importance is the root mean square of its activation on held-out rows times the norm of what it writes. One
number, `intermediate_size`, describes the result, so every program that loads the architecture loads it.

Dimensions: B sequence, R row of a pass, F neuron.
"""

from typing import Any

import torch
from torch import Tensor, nn

from workbench.distill.evaluation import EvaluationBlocks
from workbench.drafter.blocks import hidden_rows, lay_out
from workbench.drafter.model import Drafter
from workbench.errors import WorkbenchError
from workbench.prune.importance import existing_rows

_MULTIPLE = 8
"""Matrix units like widths that this divides."""


def narrow(drafter: Drafter, blocks: EvaluationBlocks, width: float) -> None:
    """Keeps this share of every feed-forward layer's neurons, in place.

    Args:
        drafter: Loses neurons.
        blocks: Held-out blocks that neurons are judged on.
        width: Share that stays; the number is rounded to a multiple of 8.

    Raises:
        WorkbenchError: the architecture's feed-forward layers are not of the gated kind.
    """
    importance = neuron_importance(drafter, blocks)
    config = drafter.model.config
    num_kept = max(_MULTIPLE, round(width * config.intermediate_size / _MULTIPLE) * _MULTIPLE)
    for layer, importance_F in zip(drafter.model.base_model.layers, importance, strict=True):
        kept_F = importance_F.topk(num_kept).indices.sort().values
        for linear in (layer.mlp.gate_proj, layer.mlp.up_proj):
            linear.weight = nn.Parameter(linear.weight[kept_F].clone(), requires_grad=False)
            if linear.bias is not None:
                linear.bias = nn.Parameter(linear.bias[kept_F].clone(), requires_grad=False)
            linear.out_features = num_kept
        down = layer.mlp.down_proj
        down.weight = nn.Parameter(down.weight[:, kept_F].clone(), requires_grad=False)
        down.in_features = num_kept
    config.intermediate_size = num_kept


@torch.no_grad()
def neuron_importance(drafter: Drafter, blocks: EvaluationBlocks) -> list[Tensor]:
    """Importance of every neuron, per layer, shape (F,)."""
    model = drafter.model
    layers = model.base_model.layers
    if not all(hasattr(layer.mlp, name) for layer in layers for name in ("gate_proj", "up_proj", "down_proj")):
        raise WorkbenchError(
            f"prune.widths needs feed-forward layers with gate_proj, up_proj and down_proj; {model.config.model_type} "
            "has others: leave it empty"
        )
    downs = [layer.mlp.down_proj for layer in layers]
    squares = [torch.zeros(down.in_features, device=model.device) for down in downs]
    exists_BR = torch.empty(0)

    def add(sums_F: Tensor) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            sums_F.add_(inputs[0][exists_BR].float().square().sum(0))

        return hook

    hooks = [down.register_forward_pre_hook(add(sums_F)) for down, sums_F in zip(downs, squares, strict=True)]
    try:
        for batch in blocks.batches:
            batch = batch.to(model.device)
            exists_BR = existing_rows(batch, drafter.spec)
            hidden_rows(model, lay_out(batch, drafter.spec))
    finally:
        for hook in hooks:
            hook.remove()
    return [sums_F.sqrt() * down.weight.float().norm(dim=0) for down, sums_F in zip(downs, squares, strict=True)]
