from pathlib import Path

import pytest

from workbench.prune.finalists import PLAIN, Result, _result, choose
from workbench.prune.healing import Candidate
from workbench.validate.statistics import Estimate
from workbench.validate.timing import Job, Measurement


def make_result(dropped=(), heal_steps=10, low=1.0, speed=1.0, same=None) -> Result:
    exact = Estimate("mean", 1.0, 1.0, 1.0)
    return Result(
        candidate=Candidate(dropped=dropped, folder=Path("x"), heal_steps=heal_steps, heal_s=1.0),
        num_prompts=48,
        acceptance_length=5.0,
        retained=Estimate("mean", low + 0.01, low, low + 0.02),
        retained_same_training=same and Estimate("mean", same, same, same),
        speedup=exact,
        speed_gain=Estimate("median", speed, speed, speed),
        hit_share=0.9,
        round_s=0.01,
        overhead_s=0.0,
        identical_share=1.0,
    )


UNPRUNED = make_result(heal_steps=0)


def test_the_fastest_of_those_that_keep_their_acceptance_wins():
    slower, faster = make_result((3,), speed=1.1, low=0.995), make_result((3, 4), speed=1.3, low=0.99, same=0.96)
    lossy = make_result((3, 4, 5), speed=1.6, low=0.98)
    chosen, reason = choose([UNPRUNED, slower, faster, lossy], 0.99)
    assert chosen is faster
    assert "[3, 4]" in reason
    assert "1.30 times" in reason
    assert "96.0% (96.0% to 96.0%) of what the unpruned drafter has after the same extra training" in reason


def test_the_bound_decides_not_the_mean():
    chosen, reason = choose([UNPRUNED, make_result((3,), speed=1.5, low=0.985)], 0.99)
    assert chosen is UNPRUNED
    assert "no pruned drafter keeps 99%" in reason
    assert "99.5% (at least 98.5%)" in reason


def test_pruning_must_beat_the_same_training_without_it():
    control = make_result((), speed=1.2)
    chosen, reason = choose([UNPRUNED, control, make_result((3,), speed=1.1)], 0.99)
    assert chosen is control
    assert "with the extra training" in reason
    assert "not faster" in reason


@pytest.mark.parametrize("speed", [0.9, 1.0])
def test_a_pruned_drafter_that_is_no_faster_is_not_worth_it(speed):
    chosen, _ = choose([UNPRUNED, make_result((3,), speed=speed)], 0.99)
    assert chosen is UNPRUNED


def decoded(prompts, num_emitted, seconds):
    """Two rounds a prompt."""
    entry = {"num_emitted": num_emitted, "outcome": "hit_anchored", "round_s": seconds / 2, "verify_s": seconds / 2,
             "packed_s": 0.0, "draft_s": 0.0}  # fmt: skip
    ids = list(range(2 * num_emitted + 1))
    arrivals = [0.1] + [0.1 + seconds] * (len(ids) - 1)
    return {
        p: Measurement(Job("s", p, "m", 0), ids, "stop", arrivals, arrivals[-1], [entry] * 2, 0, None) for p in prompts
    }


def test_everyone_is_compared_on_the_prompts_that_both_decoded():
    by_name = {
        PLAIN: decoded(range(2), 1, 4.0),
        "unpruned": decoded(range(6), 4, 2.0),
        "drop-none": decoded(range(3), 5, 2.0),
        "drop-3": decoded(range(6), 4, 1.0),
    }
    pruned = _result(make_result((3,)).candidate, "unpruned", "drop-none", by_name)
    assert (pruned.num_prompts, pruned.retained.value, pruned.speed_gain.value) == (6, 1.0, 2.0)
    assert pruned.retained_same_training is not None
    assert pruned.retained_same_training.value == pytest.approx(0.8)
    control = _result(make_result(()).candidate, "unpruned", "drop-none", by_name)
    assert (control.num_prompts, control.retained.value) == (3, 1.25)
