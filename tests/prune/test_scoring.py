import dataclasses

import numpy as np
import torch

from tests.prune.conftest import DRAFT_LENGTH, PLANTED, REAL_LAYERS
from workbench.distill.evaluation import EvaluationBlocks, score_blocks
from workbench.drafter.layers import drop_layers
from workbench.drafter.model import load_drafter, save_drafter
from workbench.prune.scoring import BlockScorer, skipped_layers


def test_dropping_nothing_retains_exactly_everything(scorer):
    retained = scorer.retained((), 1)
    assert (retained.value, retained.low, retained.high) == (1.0, 1.0, 1.0)


def test_layers_that_do_nothing_cost_nothing_and_others_do(scorer):
    assert scorer.retained(PLANTED, 1).value == 1.0
    for layer in set(range(REAL_LAYERS + len(PLANTED))) - set(PLANTED):
        assert scorer.retained((layer,), 1).high < 1.0, layer


def test_skipping_layers_scores_like_dropping_them(scorer):
    dropped = (1, 3)
    whole = scorer.drafter.model.base_model.layers
    with skipped_layers(scorer.drafter, dropped) as smaller:
        skipped = score_blocks(smaller, scorer.blocks, DRAFT_LENGTH)
    assert list(whole) == list(scorer.drafter.model.base_model.layers)
    assert len(whole) == REAL_LAYERS + len(PLANTED)
    assert torch.equal(skipped, score_blocks(drop_layers(scorer.drafter, dropped), scorer.blocks, DRAFT_LENGTH))


def test_rungs_are_nested_and_scores_follow_the_blocks(scorer):
    cheap, precise = scorer.scores((1,), 0), scorer.scores((1,), 1)
    assert 0 < len(cheap.emitted_N) < len(precise.emitted_N) == scorer.blocks.num_blocks
    np.testing.assert_array_equal(cheap.emitted_N, precise.emitted_N[: len(cheap.emitted_N)])
    assert len(precise.sequence_N) == len(precise.is_masked_N) == len(precise.emitted_N)
    # The blocks of one sequence, scored alone, are those that are ascribed to it.
    batch = scorer.blocks.batches[0]
    first = dataclasses.replace(
        batch, **{field.name: getattr(batch, field.name)[:1] for field in dataclasses.fields(batch)}
    )
    with skipped_layers(scorer.drafter, (1,)) as smaller:
        alone = score_blocks(smaller, EvaluationBlocks([first]), DRAFT_LENGTH)
    of_sequence = precise.emitted_N[: EvaluationBlocks([batch]).num_blocks][
        precise.sequence_N[: EvaluationBlocks([batch]).num_blocks] == int(first.samples_B[0])
    ]
    np.testing.assert_array_equal(of_sequence, alone.numpy())


def test_scores_are_computed_once_and_never_for_another_drafter(
    scorer, planted_folder, corpus, target, tmp_path, monkeypatch
):
    expected = scorer.scores((3,), 1)
    again = BlockScorer(planted_folder, corpus.held_out, 0, DRAFT_LENGTH, scorer.cache_folder)
    monkeypatch.setattr("workbench.prune.scoring.score_blocks", None)
    np.testing.assert_array_equal(again.scores((3,), 1).emitted_N, expected.emitted_N)
    assert again.num_evaluations == 0

    other = load_drafter(planted_folder)
    other.model.model.layers[0].mlp.down_proj.weight.data.mul_(1.01)
    save_drafter(other, tmp_path / "other", target.tokenizer)
    changed = BlockScorer(tmp_path / "other", corpus.held_out, 0, DRAFT_LENGTH, scorer.cache_folder)
    assert changed.content != scorer.content
    assert BlockScorer(planted_folder, corpus.held_out, 1, DRAFT_LENGTH, scorer.cache_folder).content != scorer.content
