"""Acceptance rules by hand and, for their output law, by enumeration of every random choice."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.decode.enumeration import enumerate_law
from workbench.decode.acceptance import accept_greedy, accept_rejection, accept_sample_match, cut_emission


def rows(*probs):
    return torch.tensor(probs, dtype=torch.float64)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.lists(st.integers(0, 4), max_size=7))
def test_greedy_emits_the_argmax_chain_up_to_the_first_disagreement(best, draft):
    draft = draft[: len(best) - 1]
    best = best[: len(draft) + 1]
    logits = torch.nn.functional.one_hot(torch.tensor(best), 5).float()
    agreed = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(draft, best, strict=False))))
    assert accept_greedy(logits, draft) == best[: agreed + 1]


def chain_law(p_LV, length):
    """Law of the next `length` tokens under independent rows, conditional laws written out."""
    law = {}
    for tokens in itertools.product(range(p_LV.shape[1]), repeat=length):
        law[tokens] = float(torch.stack([p_LV[i, t] for i, t in enumerate(tokens)]).prod())
    return law


@pytest.mark.parametrize("draft", [(0, 0), (1, 2), (2, 1), (0, 2)])
def test_sample_match_emits_prefixes_of_the_target_law(draft):
    p_LV = rows([0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5])
    law = enumerate_law(lambda randomness: tuple(accept_sample_match(p_LV, draft, randomness, 0)))
    chain = chain_law(p_LV, 3)
    for emitted, probability in law.items():
        expected = sum(p for tokens, p in chain.items() if tokens[: len(emitted)] == emitted)
        assert probability == pytest.approx(expected, abs=1e-12)


def test_rejection_emits_the_target_law_when_drafts_follow_q():
    p_LV = rows([0.5, 0.2, 0.3], [0.1, 0.6, 0.3])
    q_LV = rows([0.2, 0.7, 0.1])

    def first_token(randomness):
        draft = randomness.draw(q_LV[0], -1)
        return accept_rejection(p_LV, [draft], q_LV, randomness, 0)[0]

    law = enumerate_law(first_token)
    assert [law[t] for t in range(3)] == pytest.approx([0.5, 0.2, 0.3], abs=1e-12)


def test_rejection_never_accepts_a_token_the_target_excludes():
    p_LV = rows([0.0, 1.0], [0.5, 0.5])
    q_LV = rows([1.0, 0.0])
    law = enumerate_law(lambda randomness: tuple(accept_rejection(p_LV, [0], q_LV, randomness, 0)))
    assert law == {(1,): pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("emitted", "remaining", "kept", "stopped"),
    [
        ([5, 6, 1, 7], 10, [5, 6, 1], True),
        ([5, 6, 1, 7], 3, [5, 6, 1], True),
        ([5, 6, 1, 7], 2, [5, 6], False),
        ([1], 1, [1], True),
        ([5], 1, [5], False),
    ],
)
def test_stop_token_and_limit_in_either_order(emitted, remaining, kept, stopped):
    assert cut_emission(emitted, frozenset({1}), remaining) == (kept, stopped)
