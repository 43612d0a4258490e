import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.validate.statistics import (
    mean_of,
    mean_of_few,
    median_of,
    median_ratio_of,
    pooled_ratio_of,
    student_quantile,
)


def test_intervals_cover_the_truth_about_as_often_as_they_claim():
    rng = np.random.default_rng(0)
    covered = {"median": 0, "mean": 0}
    for trial in range(200):
        values = rng.normal(3.0, 1.0, size=40)
        for estimate in (median_of(values, trial), mean_of(values, trial)):
            covered[estimate.statistic] += estimate.low <= 3.0 <= estimate.high
    assert all(0.88 <= hits / 200 <= 0.99 for hits in covered.values()), covered


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30))
def test_the_interval_holds_the_value_and_lies_within_the_data(values):
    estimate = median_of(values)
    assert min(values) <= estimate.low <= estimate.value <= estimate.high <= max(values)


def test_the_same_seed_gives_the_same_interval():
    values = [1.0, 2.0, 5.0, 9.0]
    assert mean_of(values, seed=3) == mean_of(values, seed=3)


def test_pooled_ratio_weighs_long_outputs_and_the_median_ratio_does_not():
    tokens, rounds = [100.0, 4.0, 4.0], [10.0, 4.0, 4.0]
    assert pooled_ratio_of(tokens, rounds).value == pytest.approx(108 / 18)
    assert median_ratio_of(tokens, rounds).value == pytest.approx(1.0)


def test_pairing_removes_what_prompts_have_in_common():
    rng = np.random.default_rng(1)
    baseline = rng.uniform(10, 1000, size=40)
    estimate = median_ratio_of(baseline * rng.normal(2.0, 0.02, size=40), baseline)
    assert estimate.high - estimate.low < 0.05
    assert estimate.excludes(1.9)
    assert not estimate.excludes(2.0)


def test_the_form_in_reports():
    assert median_of([2.0]).as_dict() == {"median": 2.0, "ci95": [2.0, 2.0]}


def test_nothing_to_average_is_an_error():
    with pytest.raises(ValueError):
        mean_of([])


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (200, 1.972)])
def test_quantiles_of_student(degrees, quantile):
    assert student_quantile(degrees) == pytest.approx(quantile, rel=1e-3)


def test_the_mean_of_few_has_a_wide_interval():
    estimate = mean_of_few([6.0, 6.2, 6.4])
    assert estimate.value == pytest.approx(6.2)
    assert estimate.high - estimate.value == pytest.approx(4.303 * 0.2 / 3**0.5, rel=1e-3)
    with pytest.raises(ValueError, match="at least two"):
        mean_of_few([6.0])
