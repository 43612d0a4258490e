"""Training of the DFlash family: what a slot learns is what it drafts, for as long as it is told to."""

import dataclasses

import pytest
import torch

from tests.conftest import make_target
from workbench.distill.dflash import DFlashDistillation
from workbench.distill.fit import fit_drafter
from workbench.drafter.blocks import BlockBatch
from workbench.drafter.dflash import build_dflash, hidden_features
from workbench.recipe import DistillOptions

OPTIONS = DistillOptions(
    steps=1, masked_anchor_fraction=0.0, autoregressive="off", precision="32-true", position_weights="uniform"
)


def make_batch(starts=((6, 9), (7, -1))):
    tokens_BT = torch.randint(4, 30, (2, 14), generator=torch.Generator().manual_seed(0))
    return BlockBatch(
        tokens_BT=tokens_BT,
        prompt_lengths_B=torch.tensor([5, 5]),
        lengths_B=torch.tensor([14, 11]),
        starts_BA=torch.tensor(starts),
        masks_anchor_BA=torch.tensor([[False, True], [True, False]]),
        samples_B=torch.tensor([0, 1]),
    )


@pytest.fixture
def training():
    target = make_target()
    drafter = build_dflash(target, num_layers=2, block_size=5, num_read_layers=2)
    return target, drafter, DFlashDistillation(drafter, target, OPTIONS, 4)  # type: ignore[arg-type]


def test_a_slot_is_trained_on_its_own_token_from_what_decoding_knows(training):
    """Slow reference: every block apart, over the hidden states of the tokens before its anchor."""
    target, drafter, module = training
    batch = make_batch()
    terms = module.terms(batch)
    losses = []
    for sequence, block in ((0, 0), (0, 1), (1, 0)):
        start = int(batch.starts_BA[sequence, block])
        length = int(batch.lengths_B[sequence])
        tokens = batch.tokens_BT[sequence : sequence + 1, :length]
        output = target.model(tokens, output_hidden_states=True)
        features = hidden_features(output.hidden_states, drafter.spec.target_layer_ids)[:, :start]
        ids = torch.tensor([[int(tokens[0, start]), *[drafter.spec.mask_token_id] * 4]])
        hidden = drafter.model(
            target.model.get_input_embeddings()(ids),
            torch.arange(start, start + 5)[None],
            features,
            torch.arange(start)[None],
            torch.ones((1, 1, 5, start + 5), dtype=torch.bool),
        )
        for slot in range(1, 5):
            if start + slot >= length:
                continue
            logprobs = target.model.lm_head(hidden[0, slot]).log_softmax(-1)
            target_logprobs = output.logits[0, start + slot - 1].log_softmax(-1)
            label = tokens[0, start + slot]
            torch.testing.assert_close(terms.hidden_BALD[sequence, block, slot - 1], hidden[0, slot])
            assert terms.labels_BAL[sequence, block, slot - 1] == label
            divergence = (target_logprobs.exp() * (target_logprobs - logprobs)).sum()
            losses.append(divergence - OPTIONS.cross_entropy_weight * logprobs[label])
    torch.testing.assert_close(terms.denoising, torch.stack(losses).mean())


def test_only_the_drafter_is_trained_and_saved(training):
    target, drafter, module = training
    module.terms(make_batch()).denoising.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in drafter.model.parameters())
    assert all(parameter.grad is None for parameter in target.model.parameters())
    names = set(module.state_dict())
    assert not any("embed" in name or "lm_head" in name for name in names)
    assert {id(p) for p in module.parameters()} == {id(p) for p in drafter.model.parameters()}


def test_a_training_lowers_the_loss_on_held_out_blocks(tmp_path, corpus):
    target = make_target(vocab_rows=40)
    drafter = build_dflash(target, num_layers=1, block_size=5, num_read_layers=2)
    options = dataclasses.replace(
        OPTIONS,
        steps=24,
        batch_size=8,
        blocks_per_sequence=4,
        learning_rate=3e-3,
        denoising="cross_entropy",
        validate_every=8,
    )
    report = fit_drafter(drafter, target, corpus, options, tmp_path, 0, family=DFlashDistillation)  # type: ignore[arg-type]
    assert report.final["denoising"] < report.curve[0]["denoising"] - 0.05
    assert "acceptance_anchored" in report.final
    assert not any("masked" in name for point in report.curve for name in point)


def test_bfloat16_passes_leave_the_weights_in_float32(training):
    target, drafter, _ = training
    options = dataclasses.replace(OPTIONS, precision="bf16-true")
    module = DFlashDistillation(drafter, target, options, 4)  # type: ignore[arg-type]
    terms = module.terms(make_batch())
    terms.denoising.backward()
    assert terms.hidden_BALD.dtype == torch.bfloat16
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in drafter.model.parameters())
