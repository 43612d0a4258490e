"""How much each layer matters: cheap scores that rank layers, computed with the drafter's real block masking.

    block_influence   1 - cosine of a layer's input and output
    span_cosine       the same over k consecutive layers; a layer is worth as little as the cheapest span it is in
    leave_one_out     acceptance length lost without the layer

Dimensions: R row of a pass, D width.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from workbench.console import progress
from workbench.distill.evaluation import EvaluationBlocks
from workbench.drafter.blocks import BlockBatch, hidden_rows, lay_out
from workbench.drafter.model import Drafter, DrafterSpec
from workbench.prune.encoding import LayerSet
from workbench.prune.scoring import BlockScorer

KINDS = ("block_influence", "span_cosine", "leave_one_out")


def rank_layers(scores: Mapping[int, float]) -> LayerSet:
    """Layers from the least important one on; equal scores in the order of their index."""
    return tuple(sorted(scores, key=lambda layer: (scores[layer], layer)))


def score_layers(scorer: BlockScorer, droppable: Sequence[int], num_dropped: int) -> dict[str, dict[int, float]]:
    """All three scores of the layers `droppable` (original indices) on the blocks of the first rung.

    Args:
        scorer: Holds the drafter and the blocks.
        droppable: Layers that may go.
        num_dropped: Length of the spans of `span_cosine`.
    """
    kept = scorer.drafter.spec.kept_layers
    distances = span_distances(scorer.drafter, scorer.rung_blocks(0), num_dropped)
    leave_one_out = {}
    with progress("leave one layer out", len(droppable)) as advance:
        for layer in droppable:
            leave_one_out[layer] = 1 - scorer.retained((layer,), 0).value
            advance(1, f"layer {layer}: {leave_one_out[layer]:+.1%} lost")
    return {
        "block_influence": {layer: distances[0][kept.index(layer)] for layer in droppable},
        "span_cosine": _cheapest_spans(distances, kept, droppable, num_dropped),
        "leave_one_out": leave_one_out,
    }


def _cheapest_spans(
    distances: list[list[float]], kept: Sequence[int], droppable: Sequence[int], num_dropped: int
) -> dict[int, float]:
    """Per layer the distance over the cheapest span of droppable layers around it; shorter spans where none fits."""
    cheapest: dict[int, float] = {}
    for length in range(num_dropped, 0, -1):
        found: dict[int, float] = {}
        for start, distance in enumerate(distances[length - 1]):
            span = kept[start : start + length]
            if all(layer in droppable for layer in span):
                for layer in span:
                    found[layer] = min(distance, found.get(layer, distance))
        cheapest = {**found, **cheapest}
    return {layer: cheapest[layer] for layer in droppable}


@torch.no_grad()
def span_distances(drafter: Drafter, blocks: EvaluationBlocks, max_length: int) -> list[list[float]]:
    """Mean of 1 - cosine over every span of consecutive layers.

    Rows of padding and of absent blocks are left out; clean rows and block rows count alike, because block rows read
    the clean ones.

    Returns:
        `result[n - 1][i]` for the span of n layers that begins at position i.
    """
    num_layers = drafter.num_layers
    sums = [[0.0] * (num_layers - n + 1) for n in range(1, max_length + 1)]
    num_rows = 0
    for batch in blocks.batches:
        streams_RD = _residual_streams(drafter, batch)
        num_rows += len(streams_RD[0])
        for n in range(1, max_length + 1):
            for i in range(num_layers - n + 1):
                cosine_R = cosine_similarity(streams_RD[i], streams_RD[i + n], dim=-1)
                sums[n - 1][i] += float((1 - cosine_R).sum())
    return [[total / num_rows for total in row] for row in sums]


def _residual_streams(drafter: Drafter, batch: BlockBatch) -> list[Tensor]:
    """The residual stream before each layer and after the last one, on the rows that exist; (R, D) each."""
    model = drafter.model
    batch = batch.to(model.device)
    seen: list[Tensor] = []

    def keep_input(_: Any, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    def keep_output(_: Any, __: Any, output: Tensor) -> None:
        seen.append(output)

    layers = model.base_model.layers
    hooks = [layer.register_forward_pre_hook(keep_input) for layer in layers]
    hooks.append(layers[-1].register_forward_hook(keep_output))
    try:
        hidden_rows(model, lay_out(batch, drafter.spec))
    finally:
        for hook in hooks:
            hook.remove()
    exists_BR = existing_rows(batch, drafter.spec)
    return [stream_BRD[exists_BR].float() for stream_BRD in seen]


def existing_rows(batch: BlockBatch, spec: DrafterSpec) -> Tensor:
    """Boolean (B, R): the row of the pass is a token or belongs to a block, and is no padding."""
    position_T = torch.arange(batch.tokens_BT.shape[1], device=batch.tokens_BT.device)
    is_clean_BT = position_T < batch.lengths_B[:, None]
    is_block_BR = (batch.starts_BA >= 0).repeat_interleave(spec.block_size, dim=1)
    return torch.cat([is_clean_BT, is_block_BR], dim=1)
