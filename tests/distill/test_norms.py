"""Lean norms: what they replace, and what they leave alone."""

import copy

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from tests.conftest import make_model
from workbench.distill.norms import lean_norms


def stock_norm(width, dtype, kind=Qwen3RMSNorm):
    norm = kind(width, eps=1e-6).to(dtype)
    nn.init.normal_(norm.weight, mean=1.0, std=0.3)
    return norm


def run(norm, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    output = norm(hidden)
    outer_gradient = torch.randn(shape, generator=generator).to(dtype)
    return output.detach(), *torch.autograd.grad(output, (hidden, norm.weight), outer_gradient)


@pytest.mark.parametrize("kind", [Qwen3RMSNorm, LlamaRMSNorm])
@pytest.mark.parametrize("shape", [(2, 5, 16), (2, 5, 3, 8), (1, 4)])
def test_values_and_gradients_are_those_of_the_stock_norm(kind, shape):
    norm = stock_norm(shape[-1], torch.float32, kind)
    expected = run(norm, shape, torch.float32)
    with lean_norms(norm):
        assert "forward" in vars(norm)
        found = run(norm, shape, torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_as_close_to_float32_as_the_stock_norm_is():
    shape = (4, 50, 192)
    norm = stock_norm(192, torch.bfloat16)
    exact = run(copy.deepcopy(norm).float(), shape, torch.float32)
    stock = run(norm, shape, torch.bfloat16)
    with lean_norms(norm):
        lean = run(norm, shape, torch.bfloat16)
    for found, theirs, true in zip(lean, stock, exact, strict=True):
        assert found.dtype == torch.bfloat16
        assert (found.float() - true).norm() < 1.5 * (theirs.float() - true).norm()


def test_the_gradient_is_that_of_the_formula():
    norm = stock_norm(6, torch.float64)
    hidden = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    with lean_norms(norm):
        assert torch.autograd.gradcheck(norm, (hidden,))
        weight = torch.nn.Parameter(norm.weight.detach().clone())
        assert torch.autograd.gradcheck(lambda w: torch.func.functional_call(norm, {"weight": w}, (hidden,)), (weight,))


def test_other_norms_are_left_alone():
    others = nn.ModuleList([GemmaRMSNorm(8), nn.LayerNorm(8), nn.BatchNorm1d(8)])
    with lean_norms(others):
        assert not any("forward" in vars(module) for module in others)


def test_a_model_computes_the_same_and_is_itself_again_afterwards():
    model = make_model()
    tokens = torch.arange(12).view(2, 6)
    before = model(tokens).logits
    with lean_norms(model):
        torch.testing.assert_close(model(tokens).logits, before, rtol=1e-5, atol=1e-5)
    assert not any("forward" in vars(module) for module in model.modules())
    assert torch.equal(model(tokens).logits, before)
