import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.decode.hypotheses import (
    Hypothesis,
    Outcomes,
    RoundCosts,
    expected_round,
    outcome_table,
    select_hypotheses,
)

probability = st.floats(0.01, 0.99)


@st.composite
def outcome_lists(draw):
    outcomes, survival = [], 1.0
    num_positions = draw(st.integers(1, 3))
    for a in range(num_positions):
        share = draw(probability) if a < num_positions - 1 else 1.0
        num_bonus = draw(st.integers(0, 2))
        raw = sorted((draw(probability) for _ in range(num_bonus)), reverse=True)
        total = sum(raw) + draw(probability)
        outcomes.append(Outcomes(a, survival * share, list(range(10, 10 + num_bonus)), [p / total for p in raw]))
        survival *= 1 - share
    return outcomes


@st.composite
def cost_sets(draw):
    anchored = draw(st.floats(2, 9))
    return RoundCosts(
        verify_s=draw(st.floats(0.5, 2)),
        draft_s=draw(st.floats(0.05, 2)),
        packed_base_s=draw(st.floats(0, 1)),
        packed_block_s=draw(st.floats(0, 0.5)),
        slowdown=draw(st.floats(0, 1)),
        anchored_length=anchored,
        masked_length=anchored * draw(st.floats(0.5, 1)),
    )


@settings(max_examples=150, deadline=None)
@given(outcome_lists(), cost_sets(), st.integers(0, 4))
def test_the_choice_is_the_best_of_all_sets(outcomes, costs, max_blocks):
    every = [Hypothesis(o.num_accepted, b) for o in outcomes for b in [*o.bonus_ids, None]]
    rates = []
    for size in range(max_blocks + 1):
        for chosen in itertools.combinations(every, size):
            tokens, seconds = expected_round(chosen, outcomes, costs)
            rates.append(tokens / seconds)
    selected = select_hypotheses(outcomes, costs, max_blocks)
    tokens, seconds = expected_round(selected, outcomes, costs)
    assert len(selected) <= max_blocks
    assert len(set(selected)) == len(selected)
    assert tokens / seconds == pytest.approx(max(rates), rel=1e-6)


def test_outcomes_are_disjoint_and_complete():
    table = outcome_table([0.9, 0.5], [[7], [8, 9], [4]], [[0.6], [0.5, 0.2], [0.7]], [3, 5], frozenset())
    assert [o.probability for o in table] == pytest.approx([0.1, 0.45, 0.45])
    assert sum(o.probability for o in table) == pytest.approx(1)


def test_nothing_follows_a_stop_token():
    table = outcome_table([0.9, 0.5], [[7], [8, 1], [4]], [[0.6], [0.5, 0.2], [0.7]], [3, 1], frozenset({1}))
    assert [o.num_accepted for o in table] == [0, 1]
    assert list(table[1].bonus_ids) == [8]


def test_free_blocks_cover_everything_and_dear_ones_nothing():
    outcomes = outcome_table([0.8], [[7], [8]], [[0.6], [0.6]], [3], frozenset())
    free = RoundCosts(verify_s=1, draft_s=1, packed_base_s=0, packed_block_s=0)
    assert sum(h.bonus is None for h in select_hypotheses(outcomes, free, 8)) == 2
    dear = RoundCosts(verify_s=1, draft_s=1, packed_base_s=5, packed_block_s=5)
    assert select_hypotheses(outcomes, dear, 8) == []


def test_costs_follow_what_rounds_take():
    costs = RoundCosts(verify_s=0.01, draft_s=0.006, packed_base_s=0.005, packed_block_s=0.001)
    for _ in range(100):
        costs = costs.after_verification(0.02, 3, False).after_packed(3, 0.016)
    assert costs.verify_s == pytest.approx(0.02, rel=1e-3)
    # Base and blocks keep their proportion.
    assert costs.packed_base_s == pytest.approx(0.010, rel=1e-3)
    assert costs.packed_block_s == pytest.approx(0.002, rel=1e-3)
    # Draft passes have the machine of the verifications.
    assert costs.draft_s == pytest.approx(0.012, rel=1e-3)


def test_a_draft_pass_that_takes_longer_than_expected_buys_more_blocks():
    outcomes = outcome_table([0.9] * 3, [[5, 6]] * 4, [[0.6, 0.2]] * 4, [1, 2, 3], frozenset())
    costs = RoundCosts(verify_s=0.004, draft_s=0.002, packed_base_s=0.004, packed_block_s=0.001)
    few = select_hypotheses(outcomes, costs, 4)
    for _ in range(60):
        costs = costs.after_draft(0.02)
    assert costs.draft_s == pytest.approx(0.02, rel=1e-2)
    assert len(select_hypotheses(outcomes, costs, 4)) > len(few)


def test_a_verification_that_became_short_buys_fewer_blocks():
    outcomes = outcome_table([0.9] * 3, [[5, 6]] * 4, [[0.6, 0.2]] * 4, [1, 2, 3], frozenset())
    costs = RoundCosts(verify_s=0.010, draft_s=0.004, packed_base_s=0.004, packed_block_s=0.0015)
    many = select_hypotheses(outcomes, costs, 4)
    for _ in range(60):
        costs = costs.after_verification(0.004, 0, False)
    assert len(select_hypotheses(outcomes, costs, 4)) < len(many) == 4


def test_a_verification_is_slowed_by_any_packed_pass():
    costs = RoundCosts(verify_s=1.0, draft_s=1, packed_base_s=0, packed_block_s=0, slowdown=0.5)
    assert costs.verification_s(0) == 1.0
    assert costs.verification_s(1) == costs.verification_s(8) == 1.5


def test_what_slowed_a_verification_down_is_not_taken_for_a_longer_one():
    costs = RoundCosts(verify_s=1.0, draft_s=1, packed_base_s=0, packed_block_s=0, slowdown=0.5)
    for num_blocks in (1, 5, 0) * 20:
        costs = costs.after_verification(costs.verification_s(num_blocks), num_blocks, True)
    assert costs.verify_s == pytest.approx(1.0)


@pytest.mark.parametrize("guess", [0.0, 3.0])
def test_the_slowdown_is_learned_where_the_kind_of_verification_changes(guess):
    costs = RoundCosts(verify_s=0.01, draft_s=1, packed_base_s=0, packed_block_s=0, slowdown=guess)
    for index in range(200):
        # The machine becomes slower all the time, which is no slowdown of one kind.
        alone_s = 0.02 * 1.005**index
        is_beside = index % 8 < 4
        costs = costs.after_verification(alone_s * (1.5 if is_beside else 1.0), int(is_beside), index % 4 == 0)
    assert costs.slowdown == pytest.approx(0.5, abs=0.1)
    assert costs.verify_s == pytest.approx(alone_s, rel=0.1)


def test_one_verification_that_took_very_long_changes_little():
    costs = RoundCosts(verify_s=0.01, draft_s=1, packed_base_s=0, packed_block_s=0, slowdown=0.5)
    assert costs.after_verification(20.0, 3, True).slowdown < 1.0
    assert costs.after_verification(20.0, 0, False).verify_s < 0.012


def test_blocks_that_slow_the_verification_are_fewer():
    outcomes = outcome_table([0.9] * 3, [[5, 6]] * 4, [[0.6, 0.2]] * 4, [1, 2, 3], frozenset())
    costs = RoundCosts(verify_s=0.01, draft_s=0.002, packed_base_s=0.001, packed_block_s=0.001)
    slowing = replace(costs, slowdown=0.5)
    assert len(select_hypotheses(outcomes, slowing, 8)) < len(select_hypotheses(outcomes, costs, 8))
