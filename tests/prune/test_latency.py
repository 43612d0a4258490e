import pytest

from workbench.prune.latency import PassTimes, measure_pass_times, predicted_speedup
from workbench.prune.result import pareto_front
from workbench.recipe import DecodeOptions

TIMES = PassTimes(step_s=0.004, verify_s=0.008, draft_s=0.006, packed_s=0.010)


def test_speed_model_by_hand():
    """A round takes the longer pass, the overhead, and a draft pass in every fourth round."""
    assert predicted_speedup(6.0, TIMES, 0.75, 0.001) == pytest.approx(6.0 * 0.004 / (0.010 + 0.001 + 0.25 * 0.006))


def test_layers_below_the_verification_buy_nothing_while_all_rounds_hit():
    hidden = [PassTimes(step_s=0.004, verify_s=0.008, draft_s=0.003, packed_s=packed) for packed in (0.008, 0.004)]
    assert predicted_speedup(6.0, hidden[0], 1.0, 0.0) == predicted_speedup(6.0, hidden[1], 1.0, 0.0)
    assert predicted_speedup(6.0, TIMES, 1.0, 0.0) < predicted_speedup(6.0, hidden[0], 1.0, 0.0)


def test_every_number_of_layers_is_timed(target, planted_folder):
    options = DecodeOptions(draft_length=4, max_hypotheses=2, target_threads=1, drafter_threads=1)
    times = measure_pass_times(target, planted_folder, [1, 2, 3, 4, 5], options)
    assert list(times) == [0, 1, 2, 3, 4, 5]
    assert all(entry.packed_s > 0 and entry.draft_s > 0 for entry in times.values())
    assert times[5].draft_s < times[0].draft_s  # 2 of 7 layers are left


def test_front_holds_what_nothing_beats():
    def point(name, length, packed):
        return {"name": name, "acceptance_length": length, "packed_s": packed}

    points = [point("slow", 6.0, 9.0), point("fast", 5.0, 3.0), point("beaten", 5.0, 4.0), point("worse", 4.0, 3.0)]
    assert [entry["name"] for entry in pareto_front(points)] == ["fast", "slow"]
