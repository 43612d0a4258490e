import pytest
import torch

from tests.conftest import make_model, make_target
from workbench.distill.precision import Bfloat16Copy, choose_precision, computes_in_bfloat16, trainer_precision
from workbench.recipe import DistillOptions

IDS = torch.tensor([[5, 9, 2, 33, 7]])


def test_the_copy_computes_what_the_model_cast_to_bfloat16_computes():
    model, cast = make_model(), make_model()
    for weight in cast.parameters():  # not the rotations' frequencies, which stay exact
        weight.data = weight.data.to(torch.bfloat16)
    copy = Bfloat16Copy(model)
    hidden = copy.base_model(input_ids=IDS).last_hidden_state
    assert hidden.dtype == torch.bfloat16
    torch.testing.assert_close(hidden, cast.base_model(input_ids=IDS).last_hidden_state)
    torch.testing.assert_close(copy.get_output_embeddings()(hidden), cast(input_ids=IDS).logits)


def test_gradients_reach_the_weights_in_full_precision():
    model, exact = (make_model().requires_grad_(True) for _ in range(2))
    copy = Bfloat16Copy(model)
    hidden = copy.base_model(input_ids=IDS).last_hidden_state
    copy.get_output_embeddings()(hidden).float().log_softmax(-1)[..., 3].sum().backward()
    exact(input_ids=IDS).logits.log_softmax(-1)[..., 3].sum().backward()
    for (name, weight), expected in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert weight.grad is not None
        assert expected.grad is not None
        assert weight.dtype == weight.grad.dtype == torch.float32
        similarity = torch.cosine_similarity(weight.grad.flatten(), expected.grad.flatten(), dim=0)
        assert similarity > 0.99, name


def test_a_tied_head_shares_the_copy_of_the_embedding():
    copy = Bfloat16Copy(make_target().model)
    assert copy._head_weights["weight"] is copy._base_weights["embed_tokens.weight"]


@pytest.mark.parametrize(("multiplies", "precision"), [(True, "bf16-true"), (False, "32-true")])
def test_auto_asks_the_hardware(monkeypatch, multiplies, precision):
    monkeypatch.setattr("workbench.distill.precision.multiplies_bfloat16", lambda: multiplies)
    assert choose_precision("auto") == precision
    assert choose_precision("bf16-mixed") == "bf16-mixed"


def test_lightning_leaves_the_weights_alone():
    assert trainer_precision(DistillOptions(steps=1, precision="bf16-true")) == "32-true"
    assert trainer_precision(DistillOptions(steps=1, precision="bf16-mixed")) == "bf16-mixed"


def test_autocast_of_shards_is_a_cast_of_all_weights():
    options = DistillOptions(steps=1, precision="bf16-mixed", strategy="fsdp2")
    assert computes_in_bfloat16(options)
    assert trainer_precision(options) == "32-true"
