"""Attention over a pass of clean rows and blocks, without the rows x rows matrix of which blocks see almost nothing.

Clean rows attend to clean rows, and each block to the clean rows and to itself: two dense products instead of one over
all pairs of rows, most of them masked. The masks come from `workbench.drafter.visibility` like everybody's.

Dimensions: B sequence, H query head, G key-value head, M query heads per key-value head, T clean row, A block,
L slot of a block, R row of the pass (T + A * L), S key of a block row (T clean rows, then the L rows of its own block),
E head width.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AttentionInterface

from workbench.drafter.visibility import Rows, visible_mask
from workbench.errors import WorkbenchError

Attention = Literal["auto", "blocks", "flex"]

NAME = "workbench_blocks"
"""Under which `transformers` knows this attention."""


@dataclass(frozen=True)
class BlockVisibility:
    """Who sees whom, in the two parts that are computed; boolean."""

    clean_BTT: Tensor
    blocks_BALS: Tensor


def block_visibility(clean: Rows, blocks: Rows, block_size: int, causal_blocks: bool) -> BlockVisibility:
    """Visibility among `clean` rows of shape (B, T), and of `blocks` rows of shape (B, A * L)."""
    blocks_to_clean_BXT = visible_mask(blocks, clean, causal_blocks)
    single = Rows(
        *(field.unflatten(-1, (-1, block_size)) for field in (blocks.position, blocks.block, blocks.block_start))
    )
    return BlockVisibility(
        clean_BTT=visible_mask(clean, clean, causal_blocks),
        blocks_BALS=torch.cat(
            [
                blocks_to_clean_BXT.unflatten(1, (-1, block_size)),
                visible_mask(single, single, causal_blocks),
            ],
            -1,
        ),
    )


def choose_attention(choice: Attention, device: torch.device) -> Literal["blocks", "flex"]:
    """`auto` is FlexAttention on a GPU and attention by block elsewhere: without a GPU FlexAttention cannot train."""
    if choice == "auto":
        return "flex" if device.type == "cuda" else "blocks"
    return choice


@contextlib.contextmanager
def attending(model: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Within, a stock model's forward attends by `function`."""
    AttentionInterface.register(name, function)
    previous = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = previous


def additive(visibility: BlockVisibility, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """0 where a row is seen and minus infinity where not, in shapes that broadcast over heads.

    Returns:
        clean_B11TT and blocks_B11ALS.
    """
    zero = torch.zeros((), dtype=dtype, device=visibility.clean_BTT.device)
    clean = torch.where(visibility.clean_BTT, zero, -torch.inf)
    blocks = torch.where(visibility.blocks_BALS, zero, -torch.inf)
    return clean[:, None, None], blocks[:, None, None]


def attend_by_block(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    block_bias: tuple[Tensor, Tensor],
    scaling: float,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function in the signature of `transformers`.

    Args:
        module: The attention layer.
        query: (B, H, R, E).
        key: (B, G, R, E).
        value: (B, G, R, E).
        attention_mask: Not looked at; `block_bias` says who sees whom.
        block_bias: See `additive`.
        scaling: Of the scores.
        options: Of other attentions; those that would change the result are refused.

    Returns:
        (B, R, H, E), and no weights.
    """
    refuse_more_than_softmax(module, options)
    clean_bias_B11TT, block_bias_B11ALS = block_bias
    num_clean, (num_blocks, size) = clean_bias_B11TT.shape[-1], block_bias_B11ALS.shape[3:5]
    groups = (key.shape[1], query.shape[1] // key.shape[1])
    # Under autocast norms and rotations leave queries and keys in float32.
    query, key = (query * scaling).to(value.dtype), key.to(value.dtype)
    query_BGMRE = query.unflatten(1, groups)
    clean_query_BGMTE, block_query_BGMXE = query_BGMRE.split([num_clean, num_blocks * size], 3)
    clean_key_BGTE, block_key_BGXE = key.split([num_clean, num_blocks * size], 2)
    clean_value_BGTE, block_value_BGXE = value.split([num_clean, num_blocks * size], 2)
    own_key_BG1ALE, own_value_BG1ALE = (
        rows.unflatten(2, (num_blocks, size))[:, :, None] for rows in (block_key_BGXE, block_value_BGXE)
    )

    scores_BGMTT = _product(clean_query_BGMTE, clean_key_BGTE.transpose(-1, -2))
    clean_BGMTE = _product(scores_BGMTT.add_(clean_bias_B11TT).softmax(-1), clean_value_BGTE)

    scores_BGMALT = _product(block_query_BGMXE, clean_key_BGTE.transpose(-1, -2)).unflatten(3, (num_blocks, size))
    own_scores_BGMALL = block_query_BGMXE.unflatten(3, (num_blocks, size)) @ own_key_BG1ALE.transpose(-1, -2)
    weights_BGMALS = torch.cat([scores_BGMALT, own_scores_BGMALL], -1).add_(block_bias_B11ALS).softmax(-1)
    weights_BGMALT, own_weights_BGMALL = weights_BGMALS.split([num_clean, size], -1)
    blocks_BGMXE = _product(weights_BGMALT.flatten(3, 4), clean_value_BGTE)
    blocks_BGMXE = blocks_BGMXE + (own_weights_BGMALL @ own_value_BG1ALE).flatten(3, 4)

    return torch.cat([clean_BGMTE, blocks_BGMXE], 3).flatten(1, 2).transpose(1, 2).contiguous(), None


def refuse_more_than_softmax(module: Any, options: Mapping[str, Any]) -> None:
    """Attention whose scores are changed beside the mask would be computed wrongly."""
    changed = [name for name in ("softcap", "s_aux") if options.get(name) is not None]
    if changed:
        raise WorkbenchError(f"{type(module).__name__} needs {changed[0]} in its attention, which drafters cannot have")


def _product(left_BGMRX: Tensor, right_BGXY: Tensor) -> Tensor:
    """Matrix product in which the M query heads of a group share one operand, unrepeated."""
    heads, rows = left_BGMRX.shape[2:4]
    return (left_BGMRX.flatten(2, 3) @ right_BGXY).unflatten(2, (heads, rows))
