"""The key-value cache of one sequence: preallocated, grown in steps, cut back to a prefix after every round."""

import torch
from torch import Tensor

GROWTH_ROWS = 256
"""Capacity grows by multiples of this, so that compiled engines see few distinct shapes."""


class KVCache:
    """Keys and values of every layer for one sequence.

    The model's attention layers call `update`; the engine advances `length` once per pass. Buffers have shape
    (1, heads, capacity, head width). `truncate_to` forgets rows without touching memory.
    """

    is_compileable = False

    def __init__(self, num_layers: int) -> None:
        self.length = 0
        self.capacity = 0
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Writes the rows of a pass behind the rows that count; returns all rows up to the last written one."""
        stop = self.length + keys.shape[2]
        own_keys = self._buffer(self._keys, layer_idx, keys)
        own_values = self._buffer(self._values, layer_idx, values)
        own_keys[:, :, self.length : stop].copy_(keys)
        own_values[:, :, self.length : stop].copy_(values)
        return own_keys[:, :, :stop], own_values[:, :, :stop]

    def _buffer(self, buffers: list[Tensor | None], layer_idx: int, like: Tensor) -> Tensor:
        buffer = buffers[layer_idx]
        if buffer is None or buffer.shape[2] < self.capacity:
            grown = like.new_zeros((1, like.shape[1], self.capacity, like.shape[3]))
            if buffer is not None:
                grown[:, :, : self.length].copy_(buffer[:, :, : self.length])
            buffers[layer_idx] = buffer = grown
        return buffer

    def reserve(self, num_rows: int) -> None:
        """Makes room for `num_rows` rows in all; layers move to larger buffers at their next update."""
        if num_rows > self.capacity:
            self.capacity = -(-num_rows // GROWTH_ROWS) * GROWTH_ROWS

    def advance(self, num_rows: int) -> None:
        """Counts the rows that the last pass wrote."""
        assert self.length + num_rows <= self.capacity
        self.length += num_rows

    def truncate_to(self, length: int) -> None:
        """Forgets all rows from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} rows to {length}")
        self.length = length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows that count, under the name that `transformers` asks for."""
        return self.length


class StaticKVCache(KVCache):
    """Full-capacity buffers and a tensor of row indices: every pass of a row count has the same shapes and addresses.

    `slots` (R,) holds the cache rows that the pass writes; attention runs over the whole capacity under a mask.
    """

    is_compileable = True

    def __init__(self, num_layers: int) -> None:
        super().__init__(num_layers)
        self.slots: Tensor = torch.zeros(0, dtype=torch.long)

    def allocate(self, num_heads: int, head_width: int, dtype: torch.dtype, device: torch.device) -> None:
        """Moves all layers to buffers of the reserved capacity at once, outside compiled code."""
        like = torch.empty((1, num_heads, 0, head_width), dtype=dtype, device=device)
        for layer_idx in range(len(self._keys)):
            self._buffer(self._keys, layer_idx, like)
            self._buffer(self._values, layer_idx, like)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Writes the rows at `slots`; returns the whole buffers."""
        own_keys, own_values = self._keys[layer_idx], self._values[layer_idx]
        assert own_keys is not None
        assert own_values is not None
        own_keys.index_copy_(2, self.slots, keys)
        own_values.index_copy_(2, self.slots, values)
        return own_keys, own_values
