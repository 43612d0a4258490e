"""The learning curve as a law: where the acceptance length is heading, with its uncertainty.

    length(x) = limit - gap * (1 + x / scale) ** -rate

rises from `limit - gap` and saturates. For a given scale and rate the other two follow by least squares, so the fit is
a search over a grid. The uncertainty is a bootstrap of residuals. A learning rate that falls to zero at the end bends
a curve upwards there: a fit over one training says what more of its kind would bring, not what a longer schedule would.

Dimensions: P point, G grid cell, R resample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_POINTS = 5
"""Fewer say nothing about a law of four numbers."""
NUM_RESAMPLES = 200
FORECASTS = (1.0, 1.5, 2.0, 3.0, 4.0)
"""Multiples of the training so far at which a report looks ahead."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CurveFit:
    """A fitted law; resampled parameters carry its uncertainty."""

    limit: float
    gap: float
    scale: float
    rate: float
    resampled_R4: Floats
    """limit, gap, scale, rate of every resample."""

    def predict(self, x: float) -> tuple[float, float, float]:
        """Length at `x`, and the ends of its 95 % interval."""
        limit_R, gap_R, scale_R, rate_R = self.resampled_R4.T
        low, high = np.quantile(limit_R - gap_R * (1 + x / scale_R) ** -rate_R, [0.025, 0.975])
        value = self.limit - self.gap * (1 + x / self.scale) ** -self.rate
        return float(value), float(min(low, value)), float(max(high, value))


def fit_curve(
    x: Sequence[float] | Floats, lengths: Sequence[float] | Floats, ceiling: float, seed: int = 0
) -> CurveFit | None:
    """Fits the law to points of a curve; None for fewer than `MIN_POINTS` distinct ones.

    Args:
        x: Seconds or tokens, positive.
        lengths: Acceptance lengths.
        ceiling: Largest possible length: the limit is not above it.
        seed: Of the bootstrap.
    """
    x_P, length_P = np.asarray(x, dtype=np.float64), np.asarray(lengths, dtype=np.float64)
    if len(np.unique(x_P)) < MIN_POINTS:
        return None
    scale_G, rate_G = (
        grid.ravel() for grid in np.meshgrid(x_P.max() * np.logspace(-2.5, 1, 29), np.logspace(-1.2, 1.2, 33))
    )
    decay_GP = (1 + x_P / scale_G[:, None]) ** -rate_G[:, None]
    best, fitted_P = _least_squares(decay_GP, length_P, ceiling)
    rng = np.random.default_rng(seed)
    # Four fitted numbers take up some of the noise.
    residual_P = (length_P - fitted_P) * np.sqrt(len(x_P) / max(1, len(x_P) - 4))
    resampled = []
    for _ in range(NUM_RESAMPLES):
        (limit, gap, cell), _ = _least_squares(decay_GP, fitted_P + rng.choice(residual_P, len(x_P)), ceiling)
        resampled.append((limit, gap, scale_G[cell], rate_G[cell]))
    limit, gap, cell = best
    return CurveFit(limit, gap, float(scale_G[cell]), float(rate_G[cell]), np.array(resampled))


def forecast(
    curve: Sequence[dict[str, float]], name: str, ceiling: float, axis: str = "seconds"
) -> dict[str, object] | None:
    """What a training's curve says of more training, as plain values; None where it has too few points.

    Args:
        curve: Points with `axis` and `name`.
        name: Figure to look at, such as `acceptance_anchored`.
        ceiling: Its largest possible value.
        axis: `seconds` or `clean_tokens`.
    """
    points = [point for point in curve if point[axis] > 0]
    fit = fit_curve([point[axis] for point in points], [point[name] for point in points], ceiling)
    if fit is None:
        return None
    last = points[-1][axis]
    predictions = []
    for multiple in FORECASTS:
        value, low, high = fit.predict(multiple * last)
        predictions.append({axis: multiple * last, "multiple": multiple, "mean": value, "ci95": [low, high]})
    return {
        "figure": name,
        "axis": axis,
        "law": "limit - gap * (1 + x / scale) ** -rate",
        "limit": fit.limit,
        "gap": fit.gap,
        "scale": fit.scale,
        "rate": fit.rate,
        "predictions": predictions,
    }


def _least_squares(decay_GP: Floats, length_P: Floats, ceiling: float) -> tuple[tuple[float, float, int], Floats]:
    """Best (limit, gap, cell) with 0 <= gap and limit <= ceiling, and the fitted lengths."""
    decay_mean_G, length_mean = decay_GP.mean(1), length_P.mean()
    centred_GP = decay_GP - decay_mean_G[:, None]
    slope_G = centred_GP @ (length_P - length_mean) / np.maximum((centred_GP**2).sum(1), 1e-300)
    gap_G = np.maximum(-slope_G, 0.0)
    limit_G = length_mean + gap_G * decay_mean_G
    # Where the limit is out of reach it is the ceiling, and the gap alone is fitted.
    is_over_G = limit_G > ceiling
    capped_gap_G = np.maximum((decay_GP * (ceiling - length_P)).sum(1) / (decay_GP**2).sum(1), 0.0)
    gap_G = np.where(is_over_G, capped_gap_G, gap_G)
    limit_G = np.where(is_over_G, ceiling, limit_G)
    fitted_GP = limit_G[:, None] - gap_G[:, None] * decay_GP
    cell = int(((fitted_GP - length_P) ** 2).sum(1).argmin())
    return (float(limit_G[cell]), float(gap_G[cell]), cell), fitted_GP[cell]
