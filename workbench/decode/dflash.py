"""Drafts of the DFlash family: after every verification, from the hidden states that the target had in it.

Dimensions: R row of a pass, T token with a feature, F width of a feature, L slot of a block, V vocabulary.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from workbench.decode.cache import KVCache
from workbench.decode.drafting import Draft, draw_tokens
from workbench.decode.engine import Engine, additive_mask
from workbench.decode.sampling import SamplingSettings, target_probabilities
from workbench.decode.sources import NoDrafts
from workbench.drafter.dflash import DFlashDrafter, hidden_features, load_dflash
from workbench.errors import WorkbenchError
from workbench.packing import pack_linears
from workbench.recipe import DecodeOptions
from workbench.targets import Target


class HiddenStateEngine(Engine):
    """An eager engine that also keeps the hidden states of chosen layers for the rows of its last pass."""

    def __init__(self, model: Any, max_rows: int, layer_ids: Sequence[int]) -> None:
        super().__init__(model, max_rows)
        self._layer_ids = list(layer_ids)
        self.features_RF = torch.zeros((0, 0))

    @torch.inference_mode()
    def _run(self, ids_1R: Tensor, positions_1R: Tensor, mask_RS: Tensor, cache: KVCache, num_kept: int) -> Tensor:
        mask_11RS = mask_RS[None, None]
        output = self._call_model(ids_1R, positions_1R, mask_11RS, cache, num_kept, output_hidden_states=True)
        self.features_RF = hidden_features(output.hidden_states, self._layer_ids)[0]
        return output.logits[0]


class DFlashDrafts(NoDrafts):
    """Drafts between verifications, in the same thread.

    Args:
        drafter: Drafts `block_size - 1` tokens.
        engine: Runs the target, and keeps what the drafter reads.
        stop_ids: Of the target; no mask id is ever proposed, but a stop token may be.
    """

    def __init__(self, drafter: DFlashDrafter, engine: HiddenStateEngine) -> None:
        self.engine = engine
        self._model, self._spec = drafter.model, drafter.spec
        vocab_size = self._model.get_output_embeddings().weight.shape[0]
        forbidden_V = torch.zeros(vocab_size, dtype=torch.bool, device=self._model.device)
        forbidden_V[self._spec.mask_token_id] = True
        forbidden_V[self._spec.vocab_size or vocab_size :] = True
        self._forbidden_V = forbidden_V
        length = self._spec.block_size
        is_causal = self._spec.block_attention == "causal"
        visible_LL = torch.ones((length, length), dtype=torch.bool).tril()
        self._own_bias_LL = additive_mask(visible_LL, self._model.dtype).to(self._model.device) if is_causal else None
        self._generator = torch.Generator()
        self._sampling: SamplingSettings | None = None
        self._cache = KVCache(drafter.num_layers)

    def start(self, prompt_ids: Sequence[int], seed: int, sampling: SamplingSettings | None) -> None:
        """Begins a sequence."""
        self._cache = KVCache(len(self._model.layers))
        self._generator.manual_seed(seed)
        self._sampling = sampling

    @torch.inference_mode()
    def next_draft(self, emitted: Sequence[int], num_remaining: int, verify_s: float | None) -> Draft:
        """Takes in the hidden states of what was committed, then drafts a block behind it."""
        start_s = time.monotonic()
        features_RF = self.engine.features_RF
        # After the prefill all rows are committed, later the bonus of the round before and the accepted draft tokens.
        self._extend_context(features_RF if self._cache.length == 0 else features_RF[: len(emitted)])
        logits_LV = self._draft_block(emitted[-1]).float().masked_fill(self._forbidden_V, float("-inf"))
        if self._sampling is None:
            draft = Draft(logits_LV.argmax(-1).tolist())
        else:
            laws_LV = target_probabilities(logits_LV, self._sampling)
            draft = Draft(draw_tokens(laws_LV, self._generator), probs_LV=laws_LV)
        draft.spans = [("draft", start_s, time.monotonic())]
        return draft

    def _extend_context(self, features_TF: Tensor) -> None:
        start, count = self._cache.length, features_TF.shape[0]
        self._cache.reserve(start + count + self._spec.block_size)
        positions_1T = torch.arange(start, start + count, device=self._model.device)[None]
        features_1TF = features_TF[None].to(self._model.dtype)
        for index, (keys, values) in enumerate(self._model.project_context(features_1TF, positions_1T)):
            self._cache.update(keys, values, index)
        self._cache.advance(count)

    def _draft_block(self, anchor: int) -> Tensor:
        """Logits of the masked slots, (L - 1, V); the block's own rows do not stay in the cache."""
        start, length = self._cache.length, self._spec.block_size
        ids_1L = torch.full((1, length), self._spec.mask_token_id, device=self._model.device)
        ids_1L[0, 0] = anchor
        embedded_1LD = self._model.get_input_embeddings()(ids_1L).to(self._model.dtype)
        positions_1L = torch.arange(start, start + length, device=self._model.device)[None]
        hidden_1LD = self._model.run_blocks(embedded_1LD, positions_1L, self._attend)
        head = self._model.get_output_embeddings()
        return head(hidden_1LD[0, 1:].to(head.weight.dtype))

    def _attend(self, index: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._cache.update(key, value, index)
        bias = self._own_bias_LL
        if bias is not None:
            bias = functional.pad(bias, (keys.shape[2] - bias.shape[1], 0))
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, enable_gqa=True)


def build_dflash_drafts(target: Target, folder: Path, options: DecodeOptions, max_rows: int) -> DFlashDrafts:
    """Loads a drafter of the family and the engine that keeps what it reads.

    Raises:
        WorkbenchError: the drafter does not fit the target, or the recipe's engine keeps no hidden states.
    """
    if options.engine != "eager":
        raise WorkbenchError(
            f"{folder} reads the target's hidden states, which the {options.engine} engine does not keep: use "
            "decode.engine eager, or leave dflash out of validate.methods"
        )
    target = replace(target, model=pack_linears(target.model))  # the drafter borrows the head
    drafter = load_dflash(folder, target, options.drafter_dtype)
    engine = HiddenStateEngine(target.model, max_rows, drafter.spec.target_layer_ids)
    return DFlashDrafts(replace(drafter, model=pack_linears(drafter.model)), engine)
