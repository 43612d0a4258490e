"""FlexAttention over a pass of clean rows and blocks: on a GPU, tiles of which no row sees anything are never computed.

The kernel asks the visibility rule itself, for each pair of rows that it may not skip; nothing of rows x rows is held.

Dimensions: B sequence, H query head, G key-value head, R row of the pass, E head width.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers.integrations.flex_attention import flex_attention_forward

from workbench.drafter.attention import refuse_more_than_softmax
from workbench.drafter.visibility import Rows, is_visible

NAME = "workbench_flex"
"""Under which `transformers` knows this attention."""


def block_mask(rows: Rows, causal_blocks: bool) -> BlockMask:
    """Which tiles of rows x rows hold a visible pair, and the rule for the pairs within; `rows` of shape (B, R)."""

    def sees(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return is_visible(
            rows.position[sequence, query],
            rows.block[sequence, query],
            rows.block_start[sequence, query],
            rows.position[sequence, key],
            rows.block[sequence, key],
            causal_blocks,
        )

    num_sequences, num_rows = rows.position.shape
    # Uncompiled it would hold rows x rows for a moment.
    build = _compiled_create_block_mask() if rows.position.is_cuda else create_block_mask
    return build(sees, num_sequences, None, num_rows, num_rows, device=str(rows.position.device))


@functools.cache
def _compiled_create_block_mask() -> Any:
    return torch.compile(create_block_mask)


def attend_by_flex(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    scaling: float,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function in the signature of `transformers`.

    Args:
        module: The attention layer.
        query: (B, H, R, E).
        key: (B, G, R, E).
        value: (B, G, R, E).
        attention_mask: See `block_mask`.
        scaling: Of the scores.
        options: Of other attentions; those that would change the result are refused.

    Returns:
        (B, R, H, E), and no weights.
    """
    refuse_more_than_softmax(module, options)
    # Under autocast norms and rotations leave queries and keys in float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    attended, _ = flex_attention_forward(module, query, key, value, attention_mask, scaling=scaling)
    return attended, None
