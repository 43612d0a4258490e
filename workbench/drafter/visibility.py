"""Who sees whom: the one visibility rule, from which training and decoding take their masks.

Rows of a pass are *clean* (committed or drafted tokens) or belong to a *block* (an anchor and its masks). A row is
described by three integers: its absolute position, its block (`CLEAN` for clean rows), and the absolute position at
which its block starts.

    clean row sees clean rows at positions up to its own;
    block row sees clean rows strictly before its block's start, and its own block: all of it, or up to itself.

Dimensions: B sequence of a batch, Q query row, S key row (cached rows first, then the rows of the pass).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CLEAN = -1
"""Block id of clean rows."""
PADDING = -2
"""Block id of rows that nobody sees and that see only themselves (a row must see something)."""


@dataclass(frozen=True)
class Rows:
    """Description of rows; integer tensors of one shape (..., R)."""

    position: Tensor
    block: Tensor
    block_start: Tensor

    @staticmethod
    def concatenate(parts: "list[Rows]") -> "Rows":
        """Rows one after another along the last dimension."""
        return Rows(
            torch.cat([part.position for part in parts], -1),
            torch.cat([part.block for part in parts], -1),
            torch.cat([part.block_start for part in parts], -1),
        )

    def split(self, count: int) -> "tuple[Rows, Rows]":
        """The first `count` rows, and the rest."""
        fields = (self.position, self.block, self.block_start)
        return Rows(*(field[..., :count] for field in fields)), Rows(*(field[..., count:] for field in fields))


def is_visible(
    query_position: Tensor,
    query_block: Tensor,
    query_block_start: Tensor,
    key_position: Tensor,
    key_block: Tensor,
    causal_blocks: bool,
) -> Tensor:
    """The rule, elementwise over broadcastable integer tensors; True where the query row sees the key row."""
    key_is_clean = key_block == CLEAN
    clean_to_clean = (query_block == CLEAN) & key_is_clean & (key_position <= query_position)
    block_to_clean = (query_block >= 0) & key_is_clean & (key_position < query_block_start)
    own_block = (query_block == key_block) & (query_block >= 0)
    if causal_blocks:
        own_block = own_block & (key_position <= query_position)
    padding_to_itself = (query_block == PADDING) & (key_block == PADDING) & (query_position == key_position)
    return clean_to_clean | block_to_clean | own_block | padding_to_itself


def visible_mask(queries: Rows, keys: Rows, causal_blocks: bool) -> Tensor:
    """Dense boolean mask of shape (..., Q, S) from rows of shapes (..., Q) and (..., S)."""
    return is_visible(
        queries.position[..., :, None],
        queries.block[..., :, None],
        queries.block_start[..., :, None],
        keys.position[..., None, :],
        keys.block[..., None, :],
        causal_blocks,
    )


def clean_rows(start: int, stop: int) -> Rows:
    """Clean rows at positions `start` to `stop` (half-open)."""
    position = torch.arange(start, stop)
    return Rows(position, torch.full_like(position, CLEAN), torch.zeros_like(position))


def block_rows(starts: Tensor, block_size: int) -> Rows:
    """Rows of blocks that start at the absolute positions `starts` of shape (..., A); flattened to (..., A * L).

    A start below 0 marks a block that is not there: its rows are padding, at positions all of their own.
    """
    num_blocks = starts.shape[-1]
    offset_AL = torch.arange(block_size, device=starts.device).expand(num_blocks, block_size)
    index_AL = torch.arange(num_blocks, device=starts.device)[:, None].expand(num_blocks, block_size)
    is_there = (starts >= 0)[..., None]
    position = starts[..., None].clamp_min(0) + offset_AL
    # Distinct negative positions keep padding rows from seeing one another.
    padding_position = -1 - (index_AL * block_size + offset_AL)
    position = torch.where(is_there, position, padding_position.expand_as(position))
    block = torch.where(is_there, index_AL.expand_as(position), torch.full_like(position, PADDING))
    block_start = torch.where(is_there, starts[..., None].expand_as(position), torch.zeros_like(position))
    return Rows(position.flatten(-2), block.flatten(-2), block_start.flatten(-2))
