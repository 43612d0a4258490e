import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from workbench.validate.timing import Job, Measurement, interleaved_jobs, measure_generation


@dataclass
class Statistics:
    rounds: list = field(default_factory=list)
    num_failures: int = 0


@dataclass
class Generation:
    token_ids: list
    stop_reason: str = "length"
    statistics: Statistics = field(default_factory=Statistics)


class ScriptedDecoder:
    """Sleeps and then yields, as told."""

    def __init__(self, script):
        self.script = script

    def stream(self, prompt, max_new_tokens, temperature=None, seed=0):
        tokens = []
        for delay_s, burst in self.script:
            time.sleep(delay_s)
            tokens += burst
            yield burst
        return Generation(tokens)


def measure(script):
    return measure_generation(ScriptedDecoder(script), Job("s", 0, "m", 0), [1], 99, 0.0, 0)


def test_a_delay_shows_up_where_it_is_and_nowhere_else():
    prefill = measure([(0.05, [1]), (0.01, [2, 3, 4]), (0.01, [5])])
    later = measure([(0.0, [1]), (0.01, [2, 3, 4]), (0.06, [5])])
    assert 0.05 <= prefill.time_to_first_token_s < 0.06
    assert later.time_to_first_token_s < 0.01
    assert prefill.decode_tokens_per_second == pytest.approx(4 / 0.02, rel=0.2)
    assert later.decode_tokens_per_second == pytest.approx(4 / 0.07, rel=0.2)
    assert prefill.end_to_end_tokens_per_second == pytest.approx(5 / 0.07, rel=0.2)


def test_tokens_of_one_burst_arrive_together():
    run = measure([(0.0, [1]), (0.01, [2, 3, 4])])
    assert len(run.arrival_times_s) == 4
    assert run.inter_token_latencies_s[1:] == [0.0, 0.0]
    assert run.inter_token_latencies_s[0] >= 0.01


def test_an_output_that_arrives_at_once_has_no_decode_speed():
    assert measure([(0.0, [1, 2])]).decode_tokens_per_second is None


def test_a_measurement_survives_its_own_record():
    run = measure([(0.0, [1]), (0.01, [2])])
    again = Measurement.from_dict(run.as_dict())
    assert again.job == run.job
    assert again.arrival_times_s == pytest.approx(run.arrival_times_s, abs=1e-6)


def jobs(seed=0):
    return interleaved_jobs({"a": 5, "b": 2}, 3, 2, ["x", "y", "z"], ["x", "z"], seed)


def test_every_timed_prompt_is_decoded_by_all_methods_and_the_rest_by_those_that_must_prove_losslessness():
    expected = Counter()
    for repetition in range(2):
        for suite, count in (("a", 3), ("b", 2)):
            for prompt in range(count):
                expected.update(Job(suite, prompt, method, repetition) for method in "xyz")
    expected.update(Job("a", prompt, method, 0) for prompt in (3, 4) for method in "xz")
    assert Counter(jobs()) == expected


def test_methods_take_turns_in_a_changing_order():
    timed = [job for job in jobs() if job.prompt < 3]
    turns = [[job.method for job in timed[i : i + 3]] for i in range(0, len(timed), 3)]
    assert all(sorted(turn) == ["x", "y", "z"] for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    assert jobs() == jobs()
    assert jobs(0) != jobs(1)
