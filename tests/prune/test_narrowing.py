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
    for number, layer in enumerate(model.model.layers):
        layer.mlp.down_proj.weight.data[:, [(neuron + number) % WIDTH for neuron in DEAD]] = 0
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
    """On a single layer's own input: root of the summed squared activations times the norm written."""
    layer = drafter.model.model.layers[1]
    seen = []
    hook = layer.mlp.down_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    importance = neuron_importance(drafter, blocks)[1]
    hook.remove()
    assert importance.shape == (WIDTH,)
    assert (importance == 0).sum() == len(DEAD)
    rows = torch.cat([activation.flatten(0, 1) for activation in seen])
    bound = rows.square().sum(0).sqrt() * layer.mlp.down_proj.weight.norm(dim=0)
    assert (importance <= bound + 1e-4).all()  # padding is left out
    assert torch.corrcoef(torch.stack([importance, bound]))[0, 1] > 0.99


def test_other_feed_forward_layers_are_refused(drafter, blocks):
    for layer in drafter.model.model.layers:
        del layer.mlp.gate_proj
    with pytest.raises(WorkbenchError, match=r"prune.widths needs .*qwen3 has others"):
        neuron_importance(drafter, blocks)
