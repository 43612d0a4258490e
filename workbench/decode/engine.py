"""Engines: how one forward pass over a cached sequence is run. All decoders and baselines use the same one.

Dimensions: R rows of the pass, C cached rows, S = C + R keys, K kept rows, V vocabulary.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.decode.cache import KVCache
from workbench.errors import WorkbenchError


class Engine:
    """Eager engine: stock `transformers` forward over a preallocated cache, with explicit additive masks.

    Args:
        model: A causal LM in eval mode on its device.
        max_rows: Rows that a cache may hold at most.
    """

    def __init__(self, model: Any, max_rows: int) -> None:
        self.model = model
        self.max_rows = max_rows
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        # transformers renamed `past_key_values` to `cache` in 5.24.
        parameters = inspect.signature(inspect.unwrap(type(model).forward)).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._causal_TS = torch.zeros((0, 0), dtype=self.dtype, device=self.device)

    def new_cache(self) -> KVCache:
        """An empty cache for this engine's model."""
        return KVCache(self.model.config.num_hidden_layers)

    def forward(
        self,
        token_ids: Sequence[int],
        cache: KVCache,
        num_kept: int,
        mask_RS: Tensor | None = None,
        positions: Sequence[int] | None = None,
    ) -> Tensor:
        """Runs one pass, leaves its rows in the cache, returns logits of the last `num_kept` rows, shape (K, V).

        Args:
            token_ids: The R rows.
            cache: Advanced by R rows.
            num_kept: K; the language-model head runs on these rows only.
            mask_RS: Additive mask (0 or -inf); None: causal.
            positions: Position ids; None: following the cache.
        """
        num_rows = len(token_ids)
        stop = cache.length + num_rows
        if stop > self.max_rows:
            raise WorkbenchError(f"a sequence of {stop} rows does not fit: this decoder holds {self.max_rows}")
        cache.reserve(stop)
        if mask_RS is None:
            mask_RS = self._causal_mask(cache.length, stop)
        ids_1R = torch.tensor([list(token_ids)], device=self.device)
        positions_1R = (
            torch.arange(cache.length, stop, device=self.device)[None]
            if positions is None
            else torch.tensor([list(positions)], device=self.device)
        )
        logits_KV = self._run(ids_1R, positions_1R, mask_RS, cache, num_kept)
        cache.advance(num_rows)
        return logits_KV

    @torch.inference_mode()
    def _run(self, ids_1R: Tensor, positions_1R: Tensor, mask_RS: Tensor, cache: KVCache, num_kept: int) -> Tensor:
        return self._call_model(ids_1R, positions_1R, mask_RS[None, None], cache, num_kept).logits[0]

    def _call_model(
        self, ids_1R: Tensor, positions_1R: Tensor, mask_11RS: Tensor, cache: KVCache, num_kept: int, **more: Any
    ) -> Any:
        """The stock forward; `more` are further arguments of it."""
        return self.model(
            input_ids=ids_1R,
            attention_mask=mask_11RS,
            position_ids=positions_1R,
            use_cache=True,
            logits_to_keep=kept_rows(ids_1R, num_kept),
            **{self._cache_name: cache},
            **more,
        )

    def _causal_mask(self, start: int, stop: int) -> Tensor:
        """Additive causal mask of rows `start` to `stop` over keys up to `stop`: a view of a matrix built once."""
        if self._causal_TS.shape[0] < stop:
            size = max(stop, min(self.max_rows, 2 * stop))
            visible = torch.ones((size, size), dtype=torch.bool, device=self.device).tril()
            self._causal_TS = additive_mask(visible, self.dtype)
        return self._causal_TS[start:stop, :stop]


def kept_rows(ids_1R: Tensor, num_kept: int) -> int | Tensor:
    """`logits_to_keep` for the last rows of one sequence.

    A slice of the hidden states has a stride that `linear` does not fold; it would copy the head's weights in every
    pass (49,152 x 576 in bfloat16 on CPU: 240 ms instead of 8). Indexed rows are compact.
    """
    num_rows = ids_1R.shape[1]
    return num_kept if num_kept == num_rows else torch.arange(num_rows - num_kept, num_rows, device=ids_1R.device)


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where visible, -inf elsewhere.

    SDPA on CPU turns a boolean mask into this form again in every layer; passing it saves three operations a layer.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, float("-inf"))
