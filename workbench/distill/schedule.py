"""What changes in the course of a training, and the clock that a training by time goes by."""

import math
import time

from workbench.recipe import DistillOptions


class Clock:
    """Seconds of training, carried over from an interrupted one."""

    def __init__(self, before_s: float = 0.0):
        self.before_s = before_s
        self._started_at: float | None = None

    def start(self) -> None:
        """Starts counting."""
        self._started_at = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds up to now."""
        return self.before_s + (0.0 if self._started_at is None else time.monotonic() - self._started_at)


def schedule(progress: float, warmup_fraction: float) -> float:
    """Factor of the learning rate: a linear rise, then half a cosine down to 0."""
    if progress < warmup_fraction:
        # Half a per cent rather than 0, or the first step would be wasted.
        return max(0.005, progress / warmup_fraction)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup_fraction) / max(1e-9, 1 - warmup_fraction))))


def autoregressive_weight(options: DistillOptions, progress: float) -> float:
    """Weight of the auxiliary loss: constant, or linear from its first to its final value."""
    if options.autoregressive_final_weight is None:
        return options.autoregressive_weight
    change = options.autoregressive_final_weight - options.autoregressive_weight
    return options.autoregressive_weight + change * min(1.0, progress)
