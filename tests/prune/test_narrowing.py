import pytest
import torch

from tests.conftest import make_model, make_spec
from workbench.distill.evaluation import draw_evaluation_blocks, score_blocks
from workbench.drafter.model import Drafter, load_drafter, save_drafter
from workbench.errors import WorkbenchError
from workbench.prune.narrowing import narrow, neuron_importance

WIDTH, DEAD = 64, (3, 10, 17, 24, 31, 38, 45, 52)


@pytest.fixture
def blocks(corpus):
    return draw_evaluation_blocks(corpus.held_out, 64, 0)


@pytest.fixture
def drafter(target):
    """A drafter of which eight neurons per layer write nothing, others in every layer."""
    model = make_model(vocab_rows=40, layers=3)
    for number in range(3):
        weight = model.get_submodule(f"model.layers.{number}.mlp.down_proj").get_parameter("weight")
        weight.data[:, [(neuron + number) % WIDTH for neuron in DEAD]] = 0
    return Drafter(model, make_spec(target, block_size=5))


def test_neurons_that_write_nothing_go_and_nothing_changes(drafter, blocks):
    ids = torch.tensor([[4, 9, 20, 33]])
    before = drafter.model(ids).logits
    scores = score_blocks(drafter, blocks, 4)
    narrow(drafter, blocks, (WIDTH - len(DEAD)) / WIDTH)
    assert drafter.model.config.intermediate_size == WIDTH - len(DEAD)
    torch.testing.assert_close(drafter.model(ids).logits, before)
    assert torch.equal(score_blocks(drafter, blocks, 4), scores)


def test_a_narrowed_drafter_reloads_bit_for_bit(drafter, blocks, target, tmp_path):
    narrow(drafter, blocks, 0.5)
    save_drafter(drafter, tmp_path, target.tokenizer)
    reloaded = load_drafter(tmp_path)
    ids = torch.tensor([[4, 9, 20, 33]])
    assert torch.equal(reloaded.model(ids).logits, drafter.model(ids).logits)
    assert reloaded.model.model.layers[2].mlp.gate_proj.weight.shape == (WIDTH // 2, 32)


def test_importance_by_hand(drafter, blocks):
    """Root of the summed squared activations, rows of padding and of absent blocks aside, times the norm written."""
    layer = drafter.model.model.layers[1]
    seen = []
    hook = layer.mlp.down_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    importance = neuron_importance(drafter, blocks)[1]
    hook.remove()
    squares = torch.zeros(WIDTH)
    for activation, batch in zip(seen, blocks.batches, strict=True):
        num_tokens, size = batch.tokens_BT.shape[1], drafter.spec.block_size
        for rows, length, starts in zip(activation, batch.lengths_B, batch.starts_BA, strict=True):
            squares += rows[:length].square().sum(0)
            for number in range(len(starts)):
                if starts[number] >= 0:
                    squares += rows[num_tokens + number * size :][:size].square().sum(0)
    torch.testing.assert_close(importance, squares.sqrt() * layer.mlp.down_proj.weight.norm(dim=0))
    assert (importance == 0).sum() == len(DEAD)


def test_other_feed_forward_layers_are_refused(drafter, blocks):
    for layer in drafter.model.model.layers:
        del layer.mlp.gate_proj
    with pytest.raises(WorkbenchError, match=r"prune.widths needs .*qwen3 has others"):
        neuron_importance(drafter, blocks)
