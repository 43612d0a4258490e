"""Medians, means and ratios with bootstrap intervals, resampled by prompt.

Prompts are the unit of every interval: tokens of one prompt are not independent, and neither are repetitions of it.
Repetitions are therefore reduced to one number per prompt before anything is resampled, and methods are compared
prompt by prompt. Dimensions: R resample, P prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 2000
"""Enough for two stable digits of a 95 % interval; takes milliseconds."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95 % bootstrap interval."""

    statistic: Literal["median", "mean"]
    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, Any]:
        """`{"median": value, "ci95": [low, high]}`, as reports hold it."""
        return {self.statistic: self.value, "ci95": [self.low, self.high]}

    def excludes(self, value: float) -> bool:
        """True where the interval lies on one side of `value`."""
        return not self.low <= value <= self.high


def resampled_prompts(num_prompts: int, seed: int) -> NDArray[np.int64]:
    """Prompt indices of shape (R, P), drawn with replacement; the same seed gives the same draws."""
    return np.random.default_rng(seed).integers(0, num_prompts, size=(NUM_RESAMPLES, num_prompts))


def median_of(values: Sequence[float] | Floats, seed: int = 0) -> Estimate:
    """Median over prompts of one value each."""
    values_P = _checked(values)
    medians_R = np.median(values_P[resampled_prompts(len(values_P), seed)], axis=1)
    return _estimate("median", float(np.median(values_P)), medians_R)


def mean_of(values: Sequence[float] | Floats, seed: int = 0) -> Estimate:
    """Mean over prompts of one value each."""
    values_P = _checked(values)
    means_R = values_P[resampled_prompts(len(values_P), seed)].mean(axis=1)
    return _estimate("mean", float(values_P.mean()), means_R)


def pooled_ratio_of(numerators: Sequence[float], denominators: Sequence[float], seed: int = 0) -> Estimate:
    """Sum of numerators over sum of denominators, resampled by prompt: a mean per unit of the denominator.

    With tokens over rounds it is the pooled acceptance length, in which long outputs count for more.
    """
    numerators_P, denominators_P = _checked(numerators), _checked(denominators)
    index_RP = resampled_prompts(len(numerators_P), seed)
    ratios_R = numerators_P[index_RP].sum(axis=1) / denominators_P[index_RP].sum(axis=1)
    return _estimate("mean", float(numerators_P.sum() / denominators_P.sum()), ratios_R)


def mean_of_few(values: Sequence[float]) -> Estimate:
    """Mean of a few independent values, one per seed, with Student's interval: three are too few for a bootstrap."""
    array = _checked(values)
    if len(array) < 2:
        raise ValueError("an interval needs at least two values")
    mean = float(array.mean())
    half = student_quantile(len(array) - 1) * float(array.std(ddof=1)) / len(array) ** 0.5
    return Estimate("mean", mean, mean - half, mean + half)


def student_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t.

    With t = sqrt(degrees) tan(angle) the density is proportional to cos(angle) ** (degrees - 1) on (-90, 90) degrees.
    """
    angle = np.linspace(0, np.pi / 2, 200_001)
    share = np.cumsum(np.cos(angle) ** (degrees - 1))
    return float(np.sqrt(degrees) * np.tan(angle[np.searchsorted(share, 0.95 * share[-1])]))


def median_ratio_of(
    numerators: Sequence[float] | Floats, denominators: Sequence[float] | Floats, seed: int = 0
) -> Estimate:
    """Median over prompts of the ratio of two values of the same prompt: a paired comparison."""
    return median_of(_checked(numerators) / _checked(denominators), seed)


def _checked(values: Sequence[float] | Floats) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("a statistic needs at least one prompt")
    return array


def _estimate(statistic: Literal["median", "mean"], value: float, resampled_R: Floats) -> Estimate:
    low, high = np.quantile(resampled_R, [0.025, 0.975])
    return Estimate(statistic, value, float(low), float(high))
