"""Drafter and frozen target in shards (FSDP2): each process holds its part of every weight, gradient and moment."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForCausalLM


class Shards(nn.Module):
    """The models of a step under one root.

    While it is called, and for the gradient of what it returns, embeddings, last norms and heads are whole; a layer is
    whole only while it is passed.
    """

    def __init__(self, models: Sequence[Any]):
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, compute: Callable[[], Any]) -> Any:
        """Calls a function that runs the models in whatever way."""
        return compute()


def shard(models: Sequence[Any], mesh: DeviceMesh, in_bfloat16: bool) -> Any:
    """Shards causal LMs in place; returns their root.

    Args:
        models: Some may be frozen.
        mesh: The processes.
        in_bfloat16: Weights are gathered, and passes computed, in bfloat16; shards and sums of gradients stay as they
            are.
    """
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if in_bfloat16 else MixedPrecisionPolicy()
    for model in models:
        for layer in model.base_model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(Shards(models), mesh=mesh, mp_policy=policy)


def whole(tensor: Tensor) -> Tensor:
    """The tensor of which a process holds a shard (all take part), or the tensor itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed_like(tensor: Tensor, model: Tensor) -> Tensor:
    """A whole tensor where `model` is, and in shards if that is."""
    tensor = tensor.to(model.device)
    return distribute_tensor(tensor, model.device_mesh, model.placements) if isinstance(model, DTensor) else tensor


def whole_copy(model: Any) -> Any:
    """A plain model on the host with the weights of a sharded one; all take part, only the first process gets it."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if not state:
        return None
    with torch.device("meta"):
        copy = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    copy.load_state_dict(state, strict=False, assign=True)
    copy.tie_weights()
    for name, buffer in model.named_buffers():  # those that no state holds, such as the rotations' frequencies
        owner, _, attribute = name.rpartition(".")
        copy.get_submodule(owner)._buffers[attribute] = buffer.cpu()
    return copy
