import itertools

import pytest

from workbench.distill.schedule import autoregressive_weight, schedule
from workbench.recipe import DistillOptions


def test_schedule():
    factors = [schedule(step / 100, 0.1) for step in range(101)]
    assert 0 < factors[0] < 0.01
    assert factors[5] == pytest.approx(0.5)
    assert factors[10] == pytest.approx(1)
    assert factors[55] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0)
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors[10:]))


def test_weight_of_the_auxiliary_loss():
    assert autoregressive_weight(DistillOptions(steps=10), 0.7) == 0.3
    falling = DistillOptions(steps=10, autoregressive_weight=0.4, autoregressive_final_weight=0.0)
    assert [autoregressive_weight(falling, progress) for progress in (0, 0.5, 1, 1.2)] == [0.4, 0.2, 0, 0]
