"""Batched generation with the local target, at full batches and without copying the cache.

All sequences of a batch share preallocated keys and values and write at one common slot, so a prompt is *left* padded:
it ends where the others end. A sequence sees its own slots only, and its position ids count from its own first slot. A
finished sequence makes room for the next prompt, which is prefilled into the slots before the common one; when no
prompt is left, the batch shrinks. None of that can be seen in the output: a sequence is computed from its own tokens.

Dimensions: B row of the batch, R rows that are prefilled together, P slot of the longest of their prompts, S slot of
the cache, V vocabulary.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

_SLACK_SLOTS = 128  # steps between two moves of the cache's contents to its front
_REFILL_FRACTION = 1 / 8  # free rows of the batch that are worth a prefill, or a smaller batch


def generate_responses(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_ids: frozenset[int] | set[int],
    pad_id: int,
    *,
    batch_size: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    on_finished: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """Continues every prompt until a stop token or the length cap.

    Args:
        model: Decoder-only causal LM in eval mode.
        prompt_ids: Token ids of the prompts, none empty.
        max_new_tokens: A response is cut here.
        stop_ids: A response ends with the first of these, which it includes.
        pad_id: Any valid token id; padding is masked by length.
        batch_size: Rows computed together. It does not change the responses (up to rounding).
        temperature: 0 is greedy; else tokens are drawn with random numbers that depend on `seed` and the prompt's
            index alone.
        top_p: Nucleus that is drawn from.
        top_k: Tokens that are drawn from; 0: all.
        seed: Of the draws.
        on_finished: Called with the number of responses and of tokens that have been finished since the last call.

    Returns:
        Token ids of the responses, in the order of the prompts.
    """
    if not prompt_ids:
        return []
    sampler = Sampler(temperature, top_p, top_k, seed, max_new_tokens) if temperature > 0 else None
    batch = _Batch(model, prompt_ids, max_new_tokens, stop_ids, pad_id, min(batch_size, len(prompt_ids)), sampler)
    with torch.inference_mode():
        while batch.is_unfinished:
            batch.admit()
            num_responses, num_tokens = batch.step()
            if on_finished is not None and num_responses:
                on_finished(num_responses, num_tokens)
    return batch.responses


@dataclass
class _Layer:
    """Keys and values of one layer: (B, heads, S, width), allocated at the first prefill."""

    keys: Tensor
    values: Tensor


class SharedSlotCache(Cache):
    """A cache whose rows all write at slot `stop`; slots from `start` on are handed to attention as views.

    During a prefill (`prefilled_rows` is set) the pass attends to itself alone and ends at slot `stop`.
    """

    def __init__(self, num_rows: int, num_slots: int):
        super().__init__(layers=[])
        self.num_rows = num_rows
        self.num_slots = num_slots
        self.start = 0
        self.stop = 0
        self.prefilled_rows: Tensor | None = None
        self.memory: list[_Layer] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores a layer's new keys and values and returns those that the pass attends to."""
        if layer_idx == len(self.memory):
            # Zeros, not uninitialised memory: a masked slot still takes part as 0 times its value.
            self.memory.append(_Layer(self._allocate(key_states), self._allocate(value_states)))
        layer = self.memory[layer_idx]
        if self.prefilled_rows is not None:
            begin = self.stop - key_states.shape[2]
            layer.keys[self.prefilled_rows, :, begin : self.stop] = key_states
            layer.values[self.prefilled_rows, :, begin : self.stop] = value_states
            return key_states, value_states
        keys, values = layer.keys[: self.num_rows], layer.values[: self.num_rows]
        keys[:, :, self.stop] = key_states[:, :, 0]
        values[:, :, self.stop] = value_states[:, :, 0]
        return keys[:, :, self.start : self.stop + 1], values[:, :, self.start : self.stop + 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots that a pass sees before its own; positions are given explicitly, so models only check for a cache."""
        return 0 if self.prefilled_rows is not None else self.stop - self.start

    def shift(self, num_slots: int) -> None:
        """Drops the first `num_slots` slots of every row."""
        for layer in self.memory:
            for tensor in (layer.keys, layer.values):
                tensor[: self.num_rows, :, : self.stop - num_slots] = tensor[
                    : self.num_rows, :, num_slots : self.stop
                ].clone()
        self.start -= num_slots
        self.stop -= num_slots

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Moves `rows` (ascending) to the front and forgets the others."""
        index = torch.tensor(rows)
        for layer in self.memory:
            for tensor in (layer.keys, layer.values):
                window = tensor[:, :, self.start : self.stop]
                window[: len(rows)] = window[index.to(tensor.device)]
        self.num_rows = len(rows)

    def _allocate(self, states: Tensor) -> Tensor:
        return states.new_zeros(self.num_rows, states.shape[1], self.num_slots, states.shape[3])


@dataclass(frozen=True)
class Sampler:
    """Draws tokens with random numbers that belong to a prompt, whatever its row or batch."""

    temperature: float
    top_p: float
    top_k: int
    seed: int
    max_new_tokens: int

    def draws(self, index: int) -> Tensor:
        """Uniform numbers of the prompt `index`, one per token of its response."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        return torch.rand(self.max_new_tokens, generator=generator, dtype=torch.float64)

    def select(self, logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
        """Token ids (B) at the given quantiles of the truncated distributions, most probable tokens first."""
        sorted_logits_BV, ids_BV = torch.sort(
            logits_BV.double() / self.temperature, dim=-1, descending=True, stable=True
        )
        probs_BV = sorted_logits_BV.softmax(-1)
        if self.top_k:
            probs_BV[:, self.top_k :] = 0
        mass_before_BV = probs_BV.cumsum(-1) - probs_BV
        probs_BV = probs_BV.masked_fill(mass_before_BV >= self.top_p * probs_BV.sum(-1, keepdim=True), 0)
        cumulative_BV = probs_BV.cumsum(-1)
        quantile_B1 = uniform_B.to(probs_BV.device)[:, None] * cumulative_BV[:, -1:]
        rank_B1 = torch.searchsorted(cumulative_BV, quantile_B1, right=True)
        return ids_BV.gather(1, rank_B1.clamp(max=ids_BV.shape[1] - 1))[:, 0]


@dataclass
class _Sequence:
    """A prompt in a row of the batch."""

    index: int
    start: int  # its first slot
    token_ids: list[int] = field(default_factory=list)
    draws: Tensor | None = None


class _Batch:
    """The rows that are being generated, and the prompts that wait."""

    def __init__(
        self,
        model: Any,
        prompt_ids: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop_ids: frozenset[int] | set[int],
        pad_id: int,
        num_rows: int,
        sampler: Sampler | None,
    ):
        self.model = model
        self.prompt_ids = prompt_ids
        self.max_new_tokens = max_new_tokens
        self.stop_ids = stop_ids
        self.pad_id = pad_id
        self.sampler = sampler
        self.responses: list[list[int]] = [[] for _ in prompt_ids]
        # Popped from the end, so longest first: prompts that are prefilled together need little padding.
        self.waiting = sorted(range(len(prompt_ids)), key=lambda index: (len(prompt_ids[index]), -index))
        self.longest = len(prompt_ids[self.waiting[-1]])
        self.rows: list[_Sequence | None] = [None] * num_rows
        self.cache = SharedSlotCache(num_rows, self.longest + max_new_tokens + _SLACK_SLOTS)
        self.cache.stop = self.longest
        self.cache_keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.finished = (0, 0)

    @property
    def is_unfinished(self) -> bool:
        return bool(self.waiting) or any(row is not None for row in self.rows)

    def admit(self) -> None:
        """Fills free rows with waiting prompts, or gives them up when none waits."""
        free = [row for row, sequence in enumerate(self.rows) if sequence is None]
        if len(free) < max(1, int(len(self.rows) * _REFILL_FRACTION)) and len(free) < len(self.rows):
            return
        if self.waiting:
            free = free[: len(self.waiting)]
            self._prefill(free, [self.waiting.pop() for _ in free])
        elif free and len(free) < len(self.rows):
            kept = [row for row, sequence in enumerate(self.rows) if sequence is not None]
            self.cache.keep_rows(kept)
            self.rows = [self.rows[row] for row in kept]

    def step(self) -> tuple[int, int]:
        """Appends one token to every row; returns the responses and tokens finished since the last step."""
        living = [sequence for sequence in self.rows if sequence is not None]
        if living:
            cache = self.cache
            if cache.stop == cache.num_slots:
                self._shift(min(min(sequence.start for sequence in living), cache.stop - self.longest))
            cache.start = min(sequence.start for sequence in living)
            device = self.model.device
            token_ids = [self.pad_id if sequence is None else sequence.token_ids[-1] for sequence in self.rows]
            start_B1 = torch.tensor([cache.start if s is None else s.start for s in self.rows], device=device)[:, None]
            slot_S = torch.arange(cache.start, cache.stop + 1, device=device)
            logits_BV = self._forward(
                torch.tensor(token_ids, device=device)[:, None],
                cache.stop - start_B1,
                (slot_S >= start_B1)[:, None, None, :],
            )
            cache.stop += 1
            self._append(list(range(len(self.rows))), logits_BV)
        finished, self.finished = self.finished, (0, 0)
        return finished

    def _prefill(self, rows: list[int], indices: list[int]) -> None:
        device = self.model.device
        length_R1 = torch.tensor([len(self.prompt_ids[index]) for index in indices])[:, None]
        longest = int(length_R1.max())
        ids_RP = torch.full((len(rows), longest), self.pad_id)
        for ids_P, index in zip(ids_RP, indices, strict=True):
            ids_P[longest - len(self.prompt_ids[index]) :] = torch.tensor(self.prompt_ids[index])
        offset_RP = torch.arange(longest) - (longest - length_R1)  # negative: padding
        causal_PP = torch.ones(longest, longest, dtype=torch.bool).tril()
        # A padding slot sees itself: a softmax over nothing is NaN, and NaN spreads.
        visible_RPP = causal_PP & (offset_RP >= 0)[:, None, :] | torch.eye(longest, dtype=torch.bool)
        self.cache.prefilled_rows = torch.tensor(rows, device=device)
        logits_RV = self._forward(ids_RP.to(device), offset_RP.clamp_min(0).to(device), visible_RPP[:, None].to(device))
        self.cache.prefilled_rows = None
        for row, index in zip(rows, indices, strict=True):
            draws = self.sampler.draws(index) if self.sampler is not None else None
            self.rows[row] = _Sequence(index, self.cache.stop - len(self.prompt_ids[index]), draws=draws)
        self._append(rows, logits_RV)

    def _forward(self, ids: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Logits (rows, V) of the last slot."""
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=visible,
            use_cache=True,
            # An index, not a number: see `decode.engine.kept_rows`.
            logits_to_keep=torch.tensor([ids.shape[1] - 1], device=ids.device),
            **{self.cache_keyword: self.cache},
        )
        return output.logits[:, -1]

    def _append(self, rows: list[int], logits: Tensor) -> None:
        """Appends the chosen token of each of `rows` and frees the rows that are finished."""
        if self.sampler is None:
            chosen = logits.argmax(-1).tolist()
        else:
            uniform = torch.zeros(len(rows), dtype=torch.float64)
            for place, row in enumerate(rows):
                sequence = self.rows[row]
                if sequence is not None and sequence.draws is not None:
                    uniform[place] = sequence.draws[len(sequence.token_ids)]
            chosen = self.sampler.select(logits, uniform).tolist()
        num_responses, num_tokens = self.finished
        for row, token_id in zip(rows, chosen, strict=True):
            sequence = self.rows[row]
            if sequence is None:
                continue
            sequence.token_ids.append(token_id)
            if token_id in self.stop_ids or len(sequence.token_ids) == self.max_new_tokens:
                self.responses[sequence.index] = sequence.token_ids
                self.rows[row] = None
                num_responses, num_tokens = num_responses + 1, num_tokens + len(sequence.token_ids)
        self.finished = (num_responses, num_tokens)

    def _shift(self, num_slots: int) -> None:
        self.cache.shift(num_slots)
        for sequence in self.rows:
            if sequence is not None:
                sequence.start -= num_slots
