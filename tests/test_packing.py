import pytest
import torch
from torch import nn

from tests.conftest import make_model
from workbench import packing
from workbench.packing import PackedLinear, pack_linears

needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU multiplies no bfloat16"
)


@needs_bfloat16
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (9,), (2, 70)])
def test_a_packed_layer_computes_the_same(bias, shape):
    torch.manual_seed(0)
    linear = nn.Linear(48, 80, bias=bias, dtype=torch.bfloat16)
    inputs = torch.randn(*shape, 48, dtype=torch.bfloat16)
    with torch.inference_mode():
        packed, plain = PackedLinear(linear)(inputs), linear(inputs)
    # Sums in another order: one step of bfloat16.
    assert torch.allclose(packed.float(), plain.float(), atol=2**-8, rtol=2**-7)


@needs_bfloat16
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_packed_model_shares_its_parameters_and_leaves_the_model_alone(kind):
    model = make_model(kind).bfloat16()
    ids_1T = torch.arange(4, 36)[None]
    with torch.inference_mode():
        before = model(ids_1T).logits
        packed = pack_linears(model)
        assert torch.allclose(packed(ids_1T).logits.float(), before.float(), atol=0.05, rtol=0.05)
        assert torch.equal(model(ids_1T).logits, before)
    pointers = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    assert {name: tensor.data_ptr() for name, tensor in packed.named_parameters()} == pointers
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    assert not any(type(module) is nn.Linear for module in packed.modules())


def test_float32_stays_as_it_is():
    model = make_model()
    assert pack_linears(model) is model


@needs_bfloat16
def test_a_model_that_leaves_no_room_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(packing, "LARGEST_SHARE", 0.0)
    model = make_model().bfloat16()
    assert pack_linears(model) is model
