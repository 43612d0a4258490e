import dataclasses

import pytest

from workbench.validate import summary
from workbench.validate.losslessness import Verdict
from workbench.validate.timing import Job, Measurement


def run(seconds_per_burst=0.1, bursts=(1, 3, 3), prefill_s=0.5, rounds=(), prompt=0, repetition=0):
    arrivals = [prefill_s + index * seconds_per_burst for index, count in enumerate(bursts) for _ in range(count)]
    job = Job("s", prompt, "m", repetition)
    return Measurement(job, list(range(len(arrivals))), "length", arrivals, arrivals[-1], list(rounds), 0, None)


def entry(accepted, draft_length=3, outcome="none", emitted=None):
    return {
        "num_accepted": accepted,
        "num_emitted": accepted + 1 if emitted is None else emitted,
        "draft_length": draft_length,
        "outcome": outcome,
        "num_hypotheses": 2,
        "verify_s": 0.010,
        "draft_s": 0.002 if outcome.startswith("miss") else 0.0,
        "packed_s": 0.008,
        "round_s": 0.013,
    }


def test_speedup_is_paired_by_prompt_and_takes_the_median_repetition():
    slow = {prompt: [run(0.3 * scale, prompt=prompt)] * 3 for prompt, scale in enumerate((1, 2, 5))}
    fast = {
        prompt: [run(0.1 * scale), run(0.1 * scale), run(9.0)] for prompt, scale in enumerate((1, 2, 5))
    }  # one repetition of each was disturbed
    cell = summary.summarize_speed(fast, {"speedup": slow}, seed=0)
    assert cell["speedup"]["median"] == pytest.approx(3.0)
    assert cell["speedup"]["ci95"] == pytest.approx([3.0, 3.0])
    assert cell["tokens_per_second"]["median"] == pytest.approx(6 / 0.4)
    # The same prefill on both sides dilutes the gain end to end.
    assert 1 < cell["end_to_end_speedup"]["median"] < 3
    assert cell["num_repetitions"] == 3


def test_acceptance_is_pooled_over_rounds_and_averaged_over_prompts():
    long = run(rounds=[entry(3)] * 9)
    short = run(rounds=[entry(0)])
    cell = summary.summarize_acceptance([long, short], seed=0)
    assert cell["acceptance_length"]["mean"] == pytest.approx(37 / 10)
    assert cell["acceptance_length_per_prompt"] == pytest.approx((4 + 1) / 2)


def test_bursts_stand_in_for_rounds_that_are_not_reported():
    assert summary.emission_counts(run(bursts=(2, 3, 1))) == [3, 1]


def test_survival_and_conditional_rates_by_position():
    rounds = [entry(3), entry(1), entry(0), entry(1, draft_length=1)]
    rates = summary.acceptance_by_position([rounds], seed=0)
    assert rates["survival"] == pytest.approx([3 / 4, 1 / 3, 1 / 3])
    # Of the rounds that accepted the first token two drafted a second; one of them accepted it.
    assert rates["conditional"] == pytest.approx([3 / 4, 1 / 2, 1.0])


def test_a_rounds_outcome_is_about_what_the_round_before_accepted():
    outcomes = ["none", "hit_anchored", "hit_masked", "miss_count", "none"]
    entries = [entry(count, outcome=outcome) for count, outcome in zip((3, 3, 0, 1, 2), outcomes, strict=True)]
    hypotheses = summary.summarize_hypotheses([entries, [entry(2, outcome="hit_masked")]])
    assert hypotheses["num_rounds"] == 3
    assert hypotheses["hit_rate"] == pytest.approx(2 / 3)
    assert hypotheses["outcomes"]["miss_count"] == pytest.approx(1 / 3)
    assert hypotheses["by_num_accepted"] == {
        "0": {"num_rounds": 1, "miss_count": 1.0},
        "3": {"num_rounds": 2, "hit_anchored": 0.5, "hit_masked": 0.5},
    }


def test_blocks_that_did_not_know_their_anchor_are_counted_apart():
    first = [entry(3, outcome="hit_masked"), entry(1, outcome="hit_anchored"), entry(0, outcome="none", draft_length=0)]
    lengths = summary.acceptance_by_anchor([first, [entry(2, outcome="miss_count")]], seed=0)
    assert lengths["masked"]["num_rounds"] == 1
    assert lengths["masked"]["acceptance_length"]["mean"] == 4
    assert lengths["anchored"]["num_rounds"] == 2
    assert lengths["anchored"]["acceptance_length"]["mean"] == pytest.approx(2.5)
    assert "masked" not in summary.acceptance_by_anchor([[entry(2, outcome="none")]], seed=0)


def test_parts_of_a_round_add_up():
    parts = summary.summarize_rounds([run(rounds=[entry(1, outcome="miss_bonus"), entry(2)])])
    total = parts["verify"]["mean"] + parts["draft"]["mean"] + parts["other"]["mean"]
    assert total == pytest.approx(parts["round"]["mean"])
    assert parts["verify"]["mean"] == pytest.approx(10.0)


def test_losslessness_counts_and_first_divergence():
    bug = Verdict("different", "loses a token", 3, 2.0, "position 3")
    later = dataclasses.replace(bug, position=9)
    result = summary.summarize_losslessness(
        [Verdict("identical"), Verdict("tie", "tie", 1, 0.0, "x"), bug, later], True
    )
    assert result["lossless"] is False
    assert result["losslessness"]["divergences"]["loses a token"] == {"num_outputs": 2, "first": bug.as_dict()}
    assert summary.summarize_losslessness([Verdict("tie", "tie", 1, 0.0, "x")], True)["lossless"] is True
    assert summary.summarize_losslessness([bug], False)["lossless"] is None


def test_acceptance_by_domain_pools_rounds_and_needs_two_domains():
    runs = [run(rounds=[entry(3)] * 3, prompt=0), run(rounds=[entry(1)], prompt=1), run(rounds=[entry(0)], prompt=2)]
    by_domain = summary.summarize_domains(runs, ["algebra", "algebra", "writing"])["acceptance_by_domain"]
    assert by_domain["algebra"] == {"num_prompts": 2, "acceptance_length": pytest.approx(14 / 4)}
    assert by_domain["writing"]["acceptance_length"] == 1.0
    assert summary.summarize_domains(runs, ["algebra"] * 3) == {}
    assert summary.summarize_domains(runs, [None] * 3) == {}


def test_values_per_prompt_are_medians_in_order_and_null_where_undefined():
    values = summary.per_prompt({1: [run(bursts=(3,))], 0: [run(0.1), run(0.2), run(0.9)]})
    assert values["tokens_per_second"] == [pytest.approx(6 / 0.4), None]
    assert values["acceptance_length"] == [pytest.approx(3.0), None]
