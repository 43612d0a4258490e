import numpy as np
import pytest

from workbench.prune.objective import retained_acceptance, retained_acceptance_decoded, retained_by_seed


def correlated_blocks(num_sequences: int, loss: float, seed: int):
    """Blocks whose lengths depend much on their sequence; the candidate loses a token in a share of them."""
    rng = np.random.default_rng(seed)
    sequence = np.repeat(np.arange(num_sequences), 8)
    reference = rng.integers(2, 9, num_sequences)[sequence] + rng.integers(0, 2, len(sequence))
    candidate = reference - (rng.random(len(sequence)) < loss)
    return candidate, reference, sequence


def test_nothing_changed_is_exactly_one():
    _, reference, sequence = correlated_blocks(40, 0.1, 0)
    retained = retained_acceptance(reference, reference, sequence)
    assert (retained.value, retained.low, retained.high) == (1.0, 1.0, 1.0)


def test_value_is_the_ratio_of_mean_lengths():
    retained = retained_acceptance([4, 2, 6], [5, 5, 5], [0, 0, 1])
    assert retained.value == pytest.approx(12 / 15)
    assert retained.low == pytest.approx(6 / 10)
    assert retained.high == pytest.approx(6 / 5)


def test_pairing_makes_the_interval_narrow():
    candidate, reference, sequence = correlated_blocks(200, 0.1, 1)
    paired = retained_acceptance(candidate, reference, sequence)
    other, _, _ = correlated_blocks(200, 0.1, 2)
    unpaired = retained_acceptance(other, reference, sequence)
    assert paired.high - paired.low < 0.01
    assert unpaired.high - unpaired.low > 4 * (paired.high - paired.low)


def test_interval_covers_the_true_value_about_as_often_as_it_says():
    covered = 0
    for seed in range(60):
        candidate, reference, sequence = correlated_blocks(60, 0.3, 100 + seed)
        estimate = retained_acceptance(candidate, reference, sequence)
        truth = 1 - 0.3 / reference.mean()
        covered += estimate.low <= truth <= estimate.high
    assert 51 <= covered <= 60


def test_sequences_are_resampled_not_blocks():
    """Eight copies of every block are no more evidence than one."""
    candidate, reference, sequence = correlated_blocks(50, 0.2, 3)
    once = retained_acceptance(candidate, reference, sequence)
    copies = retained_acceptance(np.tile(candidate, 8), np.tile(reference, 8), np.tile(sequence, 8))
    assert copies.high - copies.low == pytest.approx(once.high - once.low)


def test_mean_over_seeds():
    retained = retained_by_seed([[4, 2, 6], [5, 5, 4]], [5, 5, 5], [0, 0, 1])
    assert retained.value == pytest.approx((12 / 15 + 14 / 15) / 2)


def test_seeds_that_disagree_widen_the_interval():
    candidate, reference, sequence = correlated_blocks(200, 0.1, 1)
    alike = retained_by_seed([candidate] * 5, reference, sequence)
    once = retained_acceptance(candidate, reference, sequence)
    assert alike.high - alike.low == pytest.approx(once.high - once.low, rel=0.1)
    shifted = retained_by_seed([candidate + shift for shift in (-2, -1, 0, 1, 2)], reference, sequence)
    assert shifted.value == pytest.approx(alike.value)
    assert shifted.high - shifted.low > 5 * (alike.high - alike.low)


def test_decoded_acceptance_is_pooled_over_rounds():
    candidate, reference = [(100, 20), (50, 25)], [(100, 25), (50, 10)]
    retained = retained_acceptance_decoded(candidate, reference)
    assert retained.value == pytest.approx((150 / 45) / (150 / 35))
    assert retained_acceptance_decoded(reference, reference).low == 1.0
