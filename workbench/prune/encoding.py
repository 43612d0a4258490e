"""Which layers to drop, as a sampler sees it: k integer slots, each taking one layer from those that are left.

Slot i picks from the layers that slots 0 to i - 1 left, least important first, so that small numbers mean cheap
layers, every point is feasible, and the ranges never change. Several points mean the same set; sets are therefore
named by their sorted tuple.
"""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

LayerSet = tuple[int, ...]
"""Dropped layers by original index, ascending."""


@dataclass(frozen=True)
class DropSpace:
    """All sets of `num_dropped` layers among `candidates`, which are ordered from the least important one on."""

    candidates: LayerSet
    num_dropped: int

    def __post_init__(self) -> None:
        if not 0 < self.num_dropped <= len(self.candidates):
            raise ValueError(f"cannot drop {self.num_dropped} of {len(self.candidates)} layers")

    @property
    def num_sets(self) -> int:
        """How many different sets there are."""
        return math.comb(len(self.candidates), self.num_dropped)

    def slots(self) -> dict[str, tuple[int, int]]:
        """Name and inclusive range of every slot."""
        return {f"slot_{i}": (0, len(self.candidates) - 1 - i) for i in range(self.num_dropped)}

    def decode(self, point: Mapping[str, int]) -> LayerSet:
        """The set that a point stands for."""
        rest = list(self.candidates)
        return tuple(sorted(rest.pop(point[name]) for name in self.slots()))

    def encode(self, dropped: Sequence[int]) -> dict[str, int]:
        """The point of a set whose slots take the least important layers first."""
        rest = list(self.candidates)
        point = {}
        for name, layer in zip(self.slots(), sorted(dropped, key=self.candidates.index), strict=True):
            point[name] = rest.index(layer)
            rest.remove(layer)
        return point

    def draw(self, rng: random.Random, excluded: Collection[LayerSet] = ()) -> LayerSet | None:
        """A uniformly drawn set that is not among `excluded`; None where there is no other."""
        if len(excluded) >= self.num_sets:
            return None
        while True:
            dropped = tuple(sorted(rng.sample(self.candidates, self.num_dropped)))
            if dropped not in excluded:
                return dropped
