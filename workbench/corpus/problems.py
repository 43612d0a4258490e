"""Grade-school word problems with step-by-step solutions, generated from a seed.

Every problem comes from one of the templates in `workbench.corpus.templates`. The hash of the question's text decides
its split, so no seed can carry a test question into training.
"""

import functools
import hashlib
import random
import re
from dataclasses import dataclass
from typing import Literal

from workbench.corpus.templates import CONTAINERS, ITEMS, NAMES, PLACES, TEMPLATES

Split = Literal["train", "test"]

_TEST_SHARE = 16  # one question in 16 belongs to the test split
_LARGEST_FACTOR = 12  # products stay within the times table that a small model can learn by heart
_LARGEST_RESULT = 999
_RANGE = re.compile(r"\{(\w):(\d+)-(\d+)\}")
_STEP = re.compile(r"\[(\w) = (\w) ([-+*/]) (\w)\]")
_ANSWER = re.compile(r"The answer is (-?\d+)\.")


@dataclass(frozen=True)
class Problem:
    """A question, its worked solution (a function of the question alone) and the final number."""

    question: str
    solution: str
    answer: str


@dataclass(frozen=True)
class _Form:
    """A template taken apart: format strings, ranges of numbers, and steps `(result, left, operator, right)`."""

    question: str
    solution: str
    ranges: tuple[tuple[str, int, int], ...]
    steps: tuple[tuple[str, str, str, str], ...]


def generate_problems(split: Split, seed: int, count: int) -> list[Problem]:
    """Generates `count` problems of one split with no question twice; the same arguments give the same list."""
    rng = random.Random(f"problems {split} {seed}")
    forms = _forms()
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        form = rng.choice(forms)
        problem = None
        while problem is None or question_split(problem.question) != split:  # so every form gets the same share
            problem = _draw_problem(rng, form)
        problems.setdefault(problem.question, problem)
    return list(problems.values())


def question_split(question: str) -> Split:
    """The split that a question belongs to, whatever the seed."""
    digest = hashlib.sha256(question.encode()).digest()
    return "test" if digest[0] % _TEST_SHARE == 0 else "train"


def final_answer(text: str) -> str | None:
    """The number of the last "The answer is N." in a text, or None."""
    answers = _ANSWER.findall(text)
    return answers[-1] if answers else None


@functools.cache
def _forms() -> tuple[_Form, ...]:
    return tuple(_take_apart(question, solution) for question, solution in TEMPLATES)


def _take_apart(question: str, solution: str) -> _Form:
    ranges = tuple((letter, int(low), int(high)) for letter, low, high in _RANGE.findall(question))
    steps = tuple(_STEP.findall(solution))
    plain_solution = _STEP.sub(r"{\2} \3 {\4} = {\1}", solution)
    return _Form(
        question=_RANGE.sub(r"{\1}", question),
        solution=f"{plain_solution} The answer is {{{steps[-1][0]}}}.",
        ranges=ranges,
        steps=steps,
    )


def _draw_problem(rng: random.Random, form: _Form) -> Problem | None:
    """Draws words and numbers for a form; None if a step leaves the permitted arithmetic."""
    numbers = {letter: rng.randint(low, high) for letter, low, high in form.ranges}
    for result, left, operator, right in form.steps:
        value = _calculate(numbers[left], operator, numbers[right])
        if value is None:
            return None
        numbers[result] = value
    (name, pronoun), (friend, _) = rng.sample(NAMES, 2)
    container, containers = rng.choice(CONTAINERS)
    item, other = rng.sample(ITEMS, 2)
    words = {
        "name": name,
        "he": pronoun,
        "He": pronoun.capitalize(),
        "friend": friend,
        "container": container,
        "containers": containers,
        "item": item,
        "other": other,
        "place": rng.choice(PLACES),
    }
    return Problem(
        question=form.question.format(**words, **numbers),
        solution=form.solution.format(**words, **numbers),
        answer=str(numbers[form.steps[-1][0]]),
    )


def _calculate(left: int, operator: str, right: int) -> int | None:
    """The result of one step, or None where it is inexact, too hard, or below 2 (so that plurals stay right)."""
    if operator == "+":
        value = left + right
    elif operator == "-":
        value = left - right
    elif operator == "*":
        if max(left, right) > _LARGEST_FACTOR:
            return None
        value = left * right
    else:
        if left % right or max(left // right, right) > _LARGEST_FACTOR:
            return None
        value = left // right
    return value if 2 <= value <= _LARGEST_RESULT else None
