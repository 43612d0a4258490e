"""Exact laws of programs that make random choices: runs the program once for every way the choices can go."""

from collections import defaultdict
from collections.abc import Callable, Hashable


class Script:
    """Random choices that follow a list of branch numbers and note where further branches are."""

    def __init__(self, branches: list[int]) -> None:
        self.branches = branches
        self.step = 0
        self.probability = 1.0
        self.open: list[list[int]] = []

    def choose(self, probabilities: list[float]) -> int:
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        if self.step < len(self.branches):
            branch = self.branches[self.step]
        else:
            branch = 0
            self.open += [[*self.branches, i] for i in range(1, len(possible))]
            self.branches = [*self.branches, 0]
        self.step += 1
        self.probability *= probabilities[possible[branch]] / sum(probabilities)
        return possible[branch]

    def draw(self, probs_V, position: int) -> int:
        return self.choose(probs_V.tolist())

    def flip(self, probability: float, position: int) -> bool:
        probability = min(1.0, probability)
        return self.choose([1 - probability, probability]) == 1


def enumerate_law(program: Callable[[Script], Hashable]) -> dict:
    """Law of the program's result over all its random choices."""
    law: dict = defaultdict(float)
    pending: list[list[int]] = [[]]
    while pending:
        script = Script(pending.pop())
        result = program(script)
        law[result] += script.probability
        pending += script.open
    return dict(law)
