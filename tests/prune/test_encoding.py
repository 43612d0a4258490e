import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.prune.encoding import DropSpace


@st.composite
def spaces(draw):
    candidates = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True))
    return DropSpace(tuple(candidates), draw(st.integers(1, len(candidates))))


@given(spaces(), st.randoms(use_true_random=False))
def test_every_point_is_a_set_of_the_right_size(space, rng):
    point = {name: rng.randint(low, high) for name, (low, high) in space.slots().items()}
    dropped = space.decode(point)
    assert len(set(dropped)) == space.num_dropped
    assert set(dropped) <= set(space.candidates)
    assert list(dropped) == sorted(dropped)


@given(spaces(), st.randoms(use_true_random=False))
def test_a_set_comes_back_from_its_point(space, rng):
    dropped = space.draw(rng)
    assert space.decode(space.encode(dropped)) == dropped


def test_every_set_has_a_point():
    space = DropSpace((7, 2, 9, 4), 2)
    points = itertools.product(*(range(low, high + 1) for low, high in space.slots().values()))
    sets = {space.decode(dict(zip(space.slots(), point, strict=True))) for point in points}
    assert sets == {tuple(sorted(pair)) for pair in itertools.combinations((7, 2, 9, 4), 2)}
    assert len(sets) == space.num_sets


def test_the_origin_is_the_set_of_the_least_important_layers():
    assert DropSpace((7, 2, 9, 4), 3).decode({"slot_0": 0, "slot_1": 0, "slot_2": 0}) == (2, 7, 9)


def test_drawing_leaves_out_what_is_excluded_and_ends():
    space, seen = DropSpace((1, 2, 3), 2), set()
    for _ in range(3):
        seen.add(space.draw(random.Random(0), seen))
    assert seen == {(1, 2), (1, 3), (2, 3)}
    assert space.draw(random.Random(0), seen) is None


def test_more_layers_than_there_are_cannot_go():
    with pytest.raises(ValueError, match="drop 4 of 3"):
        DropSpace((1, 2, 3), 4)
