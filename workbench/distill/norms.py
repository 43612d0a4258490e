"""Root-mean-square norms of stock models, for training: the same values, with half the passes over memory.

Written in single operations, as stock models have them, a norm reads and writes its rows some twenty times on the way
there and back. On a CPU that is a good part of a training step of a small model.

Dimensions: R row, in whatever shape, D width.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class _RootMeanSquareNorm(torch.autograd.Function):
    """y = w * x / rms(x), rms(x) = sqrt(mean(x^2) + epsilon) (https://arxiv.org/abs/1910.07467, equation 4)."""

    @staticmethod
    def forward(ctx: Any, hidden_RD: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        dtype = torch.promote_types(hidden_RD.dtype, torch.float32)
        length_R1 = torch.linalg.vector_norm(hidden_RD, dim=-1, keepdim=True, dtype=dtype)
        inverse_R1 = torch.rsqrt(length_R1.square() / hidden_RD.shape[-1] + epsilon).to(hidden_RD.dtype)
        normed_RD = hidden_RD * inverse_R1
        ctx.save_for_backward(normed_RD, inverse_R1, weight_D)
        return normed_RD * weight_D

    @staticmethod
    def backward(ctx: Any, gradient_RD: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        normed_RD, inverse_R1, weight_D = ctx.saved_tensors
        products_RD = (gradient_RD * normed_RD).flatten(0, -2)
        # Products of matrices sum in float32, whatever they are given.
        weight_gradient_1D = products_RD.new_ones(1, len(products_RD)) @ products_RD
        along_R1 = (products_RD @ weight_D).view_as(inverse_R1) / -len(weight_D)
        hidden_gradient_RD = torch.addcmul(gradient_RD * weight_D, normed_RD, along_R1).mul_(inverse_R1)
        return hidden_gradient_RD, weight_gradient_1D[0], None


@contextlib.contextmanager
def lean_norms(model: nn.Module) -> Iterator[None]:
    """Within, those norms of `model` that are root-mean-square norms, tried and not judged by name, compute leanly."""
    norms = [module for module in model.modules() if _is_root_mean_square(module)]
    for norm in norms:
        norm.forward = functools.partial(_normalise, norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _normalise(norm: Any, hidden_RD: Tensor) -> Tensor:
    weight_D = norm.weight.to(hidden_RD.dtype)
    return _RootMeanSquareNorm.apply(hidden_RD, weight_D, norm.variance_epsilon)  # pyright: ignore[reportReturnType]


@torch.no_grad()
def _is_root_mean_square(module: nn.Module) -> bool:
    weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not isinstance(weight, Tensor) or weight.ndim != 1 or not isinstance(epsilon, float):
        return False
    probe_RD = torch.stack([torch.linspace(start, 2, len(weight)) for start in (-3, 0.1)]).to(weight)
    return torch.allclose(module(probe_RD), _normalise(module, probe_RD), rtol=1e-3, atol=1e-5)
