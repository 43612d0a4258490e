import random

import pytest
import torch

from tests.conftest import make_model, make_spec, make_target
from workbench.distill.data import DistillationData, bucketed_batches, check_samples
from workbench.distill.evaluation import draw_evaluation_blocks
from workbench.distill.module import Distillation, next_token_is_response
from workbench.drafter.model import Drafter
from workbench.errors import WorkbenchError
from workbench.recipe import DistillOptions


def make_options(**changes) -> DistillOptions:
    return DistillOptions(**{"steps": 10, "batch_size": 8, "blocks_per_sequence": 4, "precision": "32-true", **changes})


def make_module(**changes) -> Distillation:
    target = make_target()
    drafter = Drafter(make_model(vocab_rows=40, seed=5).requires_grad_(True), make_spec(target, block_size=5))
    return Distillation(drafter, target, make_options(**changes), draft_length=4)


def make_data(corpus, **changes) -> DistillationData:
    held_out = draw_evaluation_blocks(corpus.held_out, 16, 0)
    return DistillationData(corpus.train, held_out, make_options(**changes), seed=0)


@pytest.mark.parametrize("denoising", ["cross_entropy", "forward_kl", "reverse_kl", "total_variation"])
@pytest.mark.parametrize("autoregressive", ["off", "cross_entropy", "forward_kl"])
def test_terms_equal_those_of_single_sequences_and_blocks(corpus, denoising, autoregressive):
    """Reference: one plain pass per block, over a sequence cut at the block's start."""
    module = make_module(denoising=denoising, autoregressive=autoregressive, position_weights="exponential")
    batch = make_data(corpus).batch(3)
    terms = module.terms(batch)
    drafter, target, options = module.model, module.online_teacher.model, module.options
    total, weights, clean = 0.0, 0.0, []
    for index, tokens in enumerate(batch.tokens_BT.tolist()):
        prompt, length = int(batch.prompt_lengths_B[index]), int(batch.lengths_B[index])
        p = target(input_ids=torch.tensor([tokens[:length]])).logits[0].log_softmax(-1)
        q = drafter(input_ids=torch.tensor([tokens[:length]])).logits[0].log_softmax(-1)
        for position in range(prompt - 1, length - 1):
            if autoregressive == "forward_kl":
                clean.append((p[position].exp() * (p[position] - q[position])).sum())
            elif autoregressive == "cross_entropy":
                clean.append(-q[position, tokens[position + 1]])
        for start, is_masked in zip(
            batch.starts_BA[index].tolist(), batch.masks_anchor_BA[index].tolist(), strict=True
        ):
            if start < 0:
                continue
            rows = tokens[:start] + [36 if is_masked else tokens[start]] + [36] * 4
            causal = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
            causal[start:] = True
            q = drafter(input_ids=torch.tensor([rows]), attention_mask=causal[None, None]).logits[0].log_softmax(-1)
            for slot in range(min(5, length - 1 - start)):
                row, label = start + slot, tokens[start + slot + 1]
                loss = {
                    "cross_entropy": -q[row, label] * (1 / options.cross_entropy_weight),
                    "forward_kl": (p[row].exp() * (p[row] - q[row])).sum(),
                    "reverse_kl": (q[row].exp() * (q[row] - p[row])).sum(),
                    "total_variation": (p[row].exp() - q[row].exp()).abs().sum() / 2,
                }[denoising]
                if denoising == "cross_entropy":
                    loss = -q[row, label]
                else:
                    loss = loss - options.cross_entropy_weight * q[row, label]
                weight = torch.tensor(-slot / options.position_decay).exp()
                total, weights = total + weight * loss, weights + weight
    torch.testing.assert_close(terms.denoising, total / weights)
    expected = torch.stack(clean).mean() if clean else torch.tensor(0.0)
    torch.testing.assert_close(terms.autoregressive, expected)


def test_the_target_is_in_no_checkpoint():
    module = make_module()
    target_weights = module.online_teacher.model.parameters()
    assert not any(parameter is weight for parameter in target_weights for weight in module.parameters())
    assert all(name.startswith(("model.", "acceptance.")) for name in module.state_dict())


def test_a_checkpoint_of_another_drafter_is_refused():
    module, other = make_module(), make_module()
    checkpoint = {}
    module.on_save_checkpoint(checkpoint)
    checkpoint["distillation"]["spec"]["mask_token_id"] = 37
    with pytest.raises(WorkbenchError, match="mask_token_id is 37"):
        other.on_load_checkpoint(checkpoint)


def test_batches_depend_on_nothing_but_their_number(corpus):
    data, again = make_data(corpus), make_data(corpus)
    order = [5, 0, 30, 5, 12]
    for number in order:
        first, second = data.batch(number), again.batch(number)
        assert torch.equal(first.tokens_BT, second.tokens_BT)
        assert torch.equal(first.starts_BA, second.starts_BA)
        assert torch.equal(first.masks_anchor_BA, second.masks_anchor_BA)


def test_anchors_are_drawn_afresh_in_every_epoch(corpus):
    data = make_data(corpus)
    first, second = {}, {}
    for starts, numbers in ((first, range(12)), (second, range(12, 24))):
        for number in numbers:
            batch = data.batch(number)
            starts.update(zip(batch.samples_B.tolist(), batch.starts_BA.tolist(), strict=True))
    assert first.keys() == second.keys() == set(range(96))
    assert sum(first[sample] == second[sample] for sample in range(96)) < 10


def test_every_sample_is_in_one_batch_of_an_epoch_and_lengths_are_alike():
    rng = random.Random(0)
    lengths = [rng.randrange(10, 200) for _ in range(1000)]
    batches = bucketed_batches(lengths, 8, random.Random(1))
    assert len(batches) == 125
    assert sorted(index for batch in batches for index in batch) == list(range(1000))
    padded = sum(8 * max(lengths[index] for index in batch) for batch in batches)
    assert padded < 1.06 * sum(lengths)


def test_a_corpus_smaller_than_a_batch_is_one_batch():
    assert [sorted(batch) for batch in bucketed_batches([3, 1, 2], 8, random.Random(0))] == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("prompts", "responses", "message"),
    [
        ([], [], "no training response"),
        ([[1], [2]], [[3, 4], []], "training sample 1 has a response of 0 tokens"),
        ([[1], []], [[3, 4], [3, 4]], "training sample 1 has no prompt token"),
        ([[1], [2]], [[3, 4], [3, 40, 1]], "training sample 1 has token 40, but the vocabulary ends at 39"),
        ([[1], [99]], [[3, 4], [3, 4]], "training sample 1 has token 99, .* another tokenizer"),
    ],
)
def test_samples_without_supervision_are_named(prompts, responses, message):
    with pytest.raises(WorkbenchError, match=message):
        check_samples(prompts, responses, vocab_rows=40)


def test_supervised_clean_rows_predict_the_response_and_its_stop(corpus):
    batch = make_data(corpus).batch(0)
    is_response = next_token_is_response(batch)
    for index in range(8):
        prompt, length = int(batch.prompt_lengths_B[index]), int(batch.lengths_B[index])
        assert is_response[index].nonzero().flatten().tolist() == list(range(prompt - 1, length - 1))


def test_progress_is_that_of_whichever_end_comes_first():
    module = make_module(steps=10, max_minutes=1.0)
    module.clock.before_s = 15.0
    assert module.progress() == pytest.approx(0.25)
    module.clock.before_s = 60.0
    assert module.progress() == pytest.approx(1.0)


def test_frozen_embeddings_learn_the_mask_alone(corpus):
    module = make_module(freeze_embeddings=True, weight_decay=0.1)
    optimizer = module.configure_optimizers()
    weight = module.model.get_input_embeddings().weight
    before = weight.detach().clone()
    terms = module.terms(make_data(corpus).batch(0))
    (terms.denoising + terms.autoregressive).backward()
    module.on_before_optimizer_step(optimizer)
    optimizer.step()
    changed = (weight != before).any(-1)
    assert changed.nonzero().flatten().tolist() == [36]
