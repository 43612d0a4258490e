"""The target's sampling distribution and the random numbers that draw from it.

Dimensions: L row of a verification, V vocabulary.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How the target's distribution is formed; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


def target_probabilities(logits_LV: Tensor, settings: SamplingSettings) -> Tensor:
    """Distribution (L, V) in float64 after temperature, top-k, then top-p (the order of `transformers`).

    Every loop draws from this one function's result, in one precision, so that ratios and draws agree.
    """
    logits_LV = logits_LV.double() / settings.temperature
    if 0 < settings.top_k < logits_LV.shape[-1]:
        kth_L1 = logits_LV.topk(settings.top_k, dim=-1).values[..., -1:]
        logits_LV = logits_LV.masked_fill(logits_LV < kth_L1, float("-inf"))
    probs_LV = logits_LV.softmax(-1)
    if settings.top_p < 1:
        sorted_LV, order_LV = probs_LV.sort(dim=-1, descending=True, stable=True)
        # A token stays while the mass before it is below top_p, so at least one stays.
        sorted_LV = sorted_LV.masked_fill(sorted_LV.cumsum(-1) - sorted_LV >= settings.top_p, 0.0)
        probs_LV = torch.zeros_like(probs_LV).scatter(-1, order_LV, sorted_LV)
        probs_LV = probs_LV / probs_LV.sum(-1, keepdim=True)
    return probs_LV


class Randomness(Protocol):
    """Source of the verifier's random choices, keyed by output position: what was drafted never shifts them."""

    def draw(self, probs_V: Tensor, position: int) -> int:
        """A token from a distribution."""
        ...

    def flip(self, probability: float, position: int) -> bool:
        """True with the given probability."""
        ...


class SeededRandomness:
    """One uniform number per output position for draws and one for flips, from a generator of the verifier's own.

    Because position `t` always uses the same numbers, sample-match decoding emits the very tokens that
    autoregressive sampling with the same seed emits.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._uniform_T2 = torch.rand((0, 2), dtype=torch.float64)

    def _uniform(self, position: int, channel: int) -> float:
        while position >= self._uniform_T2.shape[0]:
            more = torch.rand((256, 2), dtype=torch.float64, generator=self._generator)
            self._uniform_T2 = torch.cat([self._uniform_T2, more])
        return float(self._uniform_T2[position, channel])

    def draw(self, probs_V: Tensor, position: int) -> int:
        """Inverse of the cumulative distribution at the position's uniform number."""
        cumulative_V = probs_V.cumsum(-1)
        threshold = self._uniform(position, 0) * float(cumulative_V[-1])
        # right=True: an index with zero probability is never the first to exceed the threshold.
        return int(torch.searchsorted(cumulative_V, threshold, right=True).clamp_max(probs_V.shape[-1] - 1))

    def flip(self, probability: float, position: int) -> bool:
        """Strictly below: probability zero is never accepted."""
        return self._uniform(position, 1) < probability
