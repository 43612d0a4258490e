import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.distill.metrics import EstimatedAcceptance, emitted_tokens

BLOCKS = st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=12)


def count_by_hand(matches: list[bool]) -> int:
    emitted = 1
    for match in matches:
        if not match:
            break
        emitted += 1
    return emitted


@given(blocks=BLOCKS)
def test_emitted_tokens_are_the_matching_prefix_and_the_bonus(blocks):
    assert emitted_tokens(torch.tensor(blocks)).tolist() == [count_by_hand(block) for block in blocks]


@given(blocks=BLOCKS, cut=st.integers(1, 11))
def test_the_metric_is_a_mean_over_blocks_however_they_are_batched(blocks, cut):
    metric = EstimatedAcceptance(draft_length=4)
    matches = torch.tensor(blocks)
    for part in (matches[:cut], matches[cut:]):
        metric.update(part, torch.ones_like(part))
    expected = sum(count_by_hand(block[:4]) for block in blocks) / len(blocks)
    assert metric.compute().item() == pytest.approx(expected, abs=1e-12)
    assert metric.slot_agreement().tolist() == pytest.approx(matches[:, :4].double().mean(0).tolist())


def test_agreement_counts_labelled_slots_only():
    metric = EstimatedAcceptance(draft_length=2)
    metric.update(torch.tensor([[True, True], [True, False]]), torch.tensor([[True, True], [True, False]]))
    assert metric.slot_agreement().tolist() == [1, 1]


def test_correlated_slots_are_not_multiplied():
    """Blocks that match as a whole or not at all: the product of the rates per slot would give 1.97."""
    metric = EstimatedAcceptance(draft_length=8)
    matches = torch.tensor([[True] * 8, [False] * 8])
    metric.update(matches, torch.ones_like(matches))
    assert metric.compute().item() == 5
