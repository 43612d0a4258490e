import pytest
import torch

from tests.prune.conftest import PLANTED, REAL_LAYERS
from workbench.drafter.blocks import lay_out
from workbench.prune.importance import rank_layers, score_layers, span_distances

LAYERS = range(REAL_LAYERS + len(PLANTED))


@pytest.fixture
def scores(scorer):
    return score_layers(scorer, LAYERS, 2)


def test_layers_that_do_nothing_rank_lowest_by_influence_and_acceptance(scores):
    for kind in ("block_influence", "leave_one_out"):
        assert set(rank_layers(scores[kind])[: len(PLANTED)]) == set(PLANTED), kind
        assert all(scores[kind][layer] == pytest.approx(0, abs=1e-6) for layer in PLANTED)


def test_cheapest_span_is_the_pair_that_does_nothing(scores):
    assert set(rank_layers(scores["span_cosine"])[:2]) == {5, 6}


def test_protected_layers_break_spans(scorer):
    scores = score_layers(scorer, [0, 2, 3, 4, 6], 2)
    assert set(scores["span_cosine"]) == {0, 2, 3, 4, 6}


def test_influence_is_measured_on_rows_that_exist(scorer):
    """A longer padding changes no distance."""
    blocks = scorer.rung_blocks(0)
    batch = blocks.batches[0]
    padded = type(batch)(
        **{**vars(batch), "tokens_BT": torch.nn.functional.pad(batch.tokens_BT, (0, 7))},
    )
    one, other = (span_distances(scorer.drafter, type(blocks)([b]), 1)[0] for b in (batch, padded))
    assert one == pytest.approx(other, abs=1e-5)


def test_a_span_of_one_is_the_layers_own_influence_by_hand(scorer):
    """Hand calculation on the first layer: embeddings in, embeddings plus both parts out."""
    batch = scorer.rung_blocks(0).batches[0]
    drafter = scorer.drafter
    block_pass = lay_out(batch, drafter.spec)
    with torch.no_grad():
        states = drafter.model(
            input_ids=block_pass.input_ids_BR,
            attention_mask=block_pass.visible_B1RR,
            position_ids=block_pass.position_ids_BR,
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states
    cosine_BR = torch.nn.functional.cosine_similarity(states[0], states[1], dim=-1)
    is_clean = torch.arange(block_pass.num_clean) < batch.lengths_B[:, None]
    exists = torch.cat([is_clean, (batch.starts_BA >= 0).repeat_interleave(drafter.spec.block_size, 1)], 1)
    by_hand = float((1 - cosine_BR[exists]).mean())
    assert span_distances(drafter, type(scorer.blocks)([batch]), 1)[0][0] == pytest.approx(by_hand, abs=1e-5)
