import pytest

from workbench.distill.learning_rate import choose_learning_rate


def test_a_recipes_own_rate_stands():
    assert choose_learning_rate(1.5e-4, 8_000_000_000) == 1.5e-4


@pytest.mark.parametrize(
    ("num_parameters", "low", "high"),
    [(40_000, 2e-3, 2e-3), (5_000_000, 2e-3, 2e-3), (80_000_000, 3e-4, 6e-4), (8_200_000_000, 2.5e-5, 3.5e-5)],
)
def test_larger_drafters_learn_more_slowly(num_parameters, low, high):
    assert low <= choose_learning_rate("auto", num_parameters) <= high


def test_no_rate_is_absurdly_small():
    assert choose_learning_rate("auto", 10**13) == 1e-5
