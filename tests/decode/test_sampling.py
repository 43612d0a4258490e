import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.decode.sampling import SamplingSettings, SeededRandomness, target_probabilities


def reference(logits, temperature, top_p, top_k):
    """Sorting by hand, one row."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if top_k:
        order = order[:top_k]
    weights = torch.tensor([logits[i] for i in order], dtype=torch.float64).div(temperature).softmax(0).tolist()
    kept, mass = [], 0.0
    for index, weight in zip(order, weights, strict=True):
        if mass >= top_p:
            break
        kept.append((index, weight))
        mass += weight
    probs = [0.0] * len(logits)
    for index, weight in kept:
        probs[index] = weight / sum(w for _, w in kept)
    return probs


@settings(max_examples=60, deadline=None)
@given(
    # Tenths: logits that differ by less than rounding would be ties, whose order is arbitrary.
    st.lists(st.integers(-50, 50).map(lambda tenths: tenths / 10), min_size=2, max_size=8, unique=True),
    st.floats(0.2, 2),
    st.floats(0.1, 1),
    st.integers(0, 8),
)
def test_distribution_equals_sorting_by_hand(logits, temperature, top_p, top_k):
    chosen = SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k)
    probs = target_probabilities(torch.tensor([logits], dtype=torch.float64), chosen)[0].tolist()
    assert probs == pytest.approx(reference(logits, temperature, top_p, top_k), abs=1e-9)


def test_draws_follow_the_distribution_and_the_position():
    probs = torch.tensor([0.0, 0.25, 0.75], dtype=torch.float64)
    randomness = SeededRandomness(3)
    draws = [randomness.draw(probs, t) for t in range(4000)]
    assert draws == [SeededRandomness(3).draw(probs, t) for t in (0, 1, 2)] + draws[3:]
    assert 0 not in draws
    assert draws.count(2) / len(draws) == pytest.approx(0.75, abs=0.03)


def test_flips_are_strict_and_apart_from_draws():
    randomness = SeededRandomness(3)
    assert not any(randomness.flip(0.0, t) for t in range(500))
    assert all(randomness.flip(1.0, t) for t in range(500))
    both = [(randomness.flip(0.5, t), randomness.draw(torch.tensor([0.5, 0.5]), t) == 0) for t in range(2000)]
    assert sum(a == b for a, b in both) / len(both) == pytest.approx(0.5, abs=0.05)
