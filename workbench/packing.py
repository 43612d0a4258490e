"""Weights in the layout that oneDNN multiplies in, for inference in bfloat16 on CPUs.

A bfloat16 product on CPU brings its weights into that layout in every call, which for the few rows of a decoding pass
takes as long as the product (576 x 1536, 9 rows, one core with AMX: 242 microseconds, packed 114).
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from workbench.host import memory_bytes

_TYPICAL_ROWS = 16
"""Rows of a pass that the layout is chosen for; others are computed as well."""
LARGEST_SHARE = 0.2
"""Of the machine's memory that packed weights may take."""


class PackedLinear(nn.Module):
    """Computes what a bias-free or biased `nn.Linear` computes, for inference alone.

    Args:
        linear: Its parameters stay shared; the packed weights are a copy, which later changes of them do not reach.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_ROWS)

    def forward(self, inputs: Tensor) -> Tensor:
        """Rows of shape (..., inputs) to rows of shape (..., outputs)."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self.bias, "none", [], "")


def pack_linears(model: Any) -> Any:
    """The model with packed linear layers where that helps (bfloat16 on a CPU with such instructions, and memory for
    it), else itself.

    The packed model is a second tree of modules over the same parameters; the given one stays as it is. Packed weights
    take as much memory as the linear layers once more.
    """
    return _packed(model) if _is_packable(model) else model


def _packed(module: nn.Module) -> nn.Module:
    if type(module) is nn.Linear:
        return PackedLinear(module)
    twin = copy.copy(module)
    twin._modules = {name: child and _packed(child) for name, child in module._modules.items()}
    return twin


def _is_packable(model: Any) -> bool:
    is_bfloat16_on_cpu = model.device.type == "cpu" and model.dtype == torch.bfloat16
    if not (is_bfloat16_on_cpu and torch.backends.mkldnn.is_available()):
        return False
    packed_bytes = sum(module.weight.nbytes for module in model.modules() if type(module) is nn.Linear)
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and packed_bytes <= LARGEST_SHARE * memory_bytes()
