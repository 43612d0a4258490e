"""Word problems: the same for a seed, split without overlap, right in every step."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.corpus.problems import final_answer, generate_problems, question_split
from workbench.corpus.templates import TEMPLATES

STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def is_right(left: int, operator: str, right: int, result: int) -> bool:
    if operator == "/":
        return result * right == left
    return {"+": left + right, "-": left - right, "*": left * right}[operator] == result


def test_a_seed_gives_the_same_problems():
    assert generate_problems("train", 3, 50) == generate_problems("train", 3, 50)
    assert generate_problems("train", 3, 50) != generate_problems("train", 4, 50)


def test_a_longer_call_begins_like_a_shorter_one():
    assert generate_problems("test", 1, 60)[:20] == generate_problems("test", 1, 20)


def test_no_question_comes_twice_and_the_splits_are_disjoint():
    train = [problem.question for problem in generate_problems("train", 0, 3000)]
    test = [problem.question for problem in generate_problems("test", 1, 1000)]
    assert len(set(train)) == 3000
    assert len(set(test)) == 1000
    assert not set(train) & set(test)
    assert {question_split(question) for question in train} == {"train"}
    assert {question_split(question) for question in test} == {"test"}


@given(seed=st.integers(0, 10**6), split=st.sampled_from(["train", "test"]))
@settings(max_examples=20, deadline=None)
def test_every_step_is_right_and_the_last_one_is_the_answer(seed, split):
    for problem in generate_problems(split, seed, 20):
        steps = [(int(a), op, int(b), int(c)) for a, op, b, c in STEP.findall(problem.solution)]
        assert 2 <= len(steps) <= 4, problem
        assert all(is_right(*step) for step in steps), problem
        assert str(steps[-1][3]) == problem.answer == final_answer(problem.solution), problem
        assert problem.solution.count("=") == len(steps), problem


def test_steps_use_numbers_of_the_question_or_earlier_results():
    for problem in generate_problems("train", 5, 500):
        known = set(re.findall(r"\d+", problem.question)) | {"2"}  # "equally between" two people
        for left, _, right, result in STEP.findall(problem.solution):
            assert {left, right} <= known, problem
            known.add(result)


def test_equal_questions_have_equal_solutions():
    solutions: dict[str, str] = {}
    for seed in range(10):
        for problem in generate_problems("train", seed, 500):
            assert solutions.setdefault(problem.question, problem.solution) == problem.solution


def test_every_template_is_used_alike():
    assert len(set(TEMPLATES)) == len(TEMPLATES) >= 30
    forms = [
        re.compile(re.sub(r"\\\{\w+(?::\d+\\-\d+)?\\\}", r"\\w+", re.escape(question))) for question, _ in TEMPLATES
    ]
    questions = [problem.question for problem in generate_problems("train", 0, 100 * len(TEMPLATES))]
    counts = [sum(form.fullmatch(question) is not None for question in questions) for form in forms]
    assert sum(counts) == len(questions)
    assert min(counts) > 50
    assert max(counts) < 150


def test_no_blank_is_left_open():
    for problem in generate_problems("train", 0, 1000):
        assert not set("{}[]") & set(problem.question + problem.solution)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3 * 4 = 12. The answer is 12.", "12"),
        ("The answer is 3. No. The answer is 45.", "45"),
        ("The answer is 12", None),
        ("twelve", None),
        ("", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer
