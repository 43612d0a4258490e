"""Plain searches: the sets that the study starts from, and what it is compared with."""

import random
from collections.abc import Callable, Mapping, Sequence

from workbench.prune.encoding import DropSpace, LayerSet
from workbench.prune.importance import rank_layers

Evaluate = Callable[[Sequence[LayerSet]], list[float]]
"""Retained acceptance length without each of some sets of layers."""

GREEDY_POOL = 16
"""Least important layers that the greedy search tries at every step."""


def one_shot_set(scores: Mapping[int, float], num_dropped: int) -> LayerSet:
    """The least important layers of one ranking."""
    return tuple(sorted(rank_layers(scores)[:num_dropped]))


def greedy_steps(evaluate: Evaluate, candidates: Sequence[int], num_dropped: int) -> list[dict[LayerSet, float]]:
    """Drops the best further layer, again and again.

    Args:
        evaluate: Called once per step, with all sets that are tried in it.
        candidates: Layers that may go, least important first.
        num_dropped: Number of steps.

    Returns:
        For every step the sets that were tried, best first, with what they retain; the first one goes on.
    """
    steps: list[dict[LayerSet, float]] = []
    best: LayerSet = ()
    for _ in range(num_dropped):
        pool = [layer for layer in candidates if layer not in best][:GREEDY_POOL]
        tried = [tuple(sorted((*best, layer))) for layer in pool]
        steps.append(dict(sorted(zip(tried, evaluate(tried), strict=True), key=lambda item: -item[1])))
        best = next(iter(steps[-1]))
    return steps


def random_sets(space: DropSpace, count: int, seed: int) -> list[LayerSet]:
    """Distinct sets, uniformly drawn; fewer where there are no more."""
    rng = random.Random(f"random sets {seed}")
    drawn: list[LayerSet] = []
    while len(drawn) < count and (dropped := space.draw(rng, set(drawn))) is not None:
        drawn.append(dropped)
    return drawn
