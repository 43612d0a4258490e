"""The processes of a training: how many there are, how Lightning runs them, and what they compute together."""

from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor

from workbench.recipe import DistillOptions


def count_processes(options: DistillOptions) -> int:
    """Processes on all nodes together, each with a device of its own."""
    return options.devices * options.nodes


def is_sharded(options: DistillOptions) -> bool:
    """Each process holds a part of every weight, not all weights."""
    return options.strategy == "fsdp2"


def choose_strategy(options: DistillOptions) -> Any:
    """What Lightning is given: `auto` is one process alone, or copies of the drafter that average their gradients."""
    if is_sharded(options):
        return ModelParallelStrategy(
            data_parallel_size=count_processes(options), tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    return DDPStrategy() if count_processes(options) > 1 else "auto"


def sum_over_processes(tensor: Tensor, num_processes: int) -> Tensor:
    """Elementwise sum of every process's `tensor`; no gradient."""
    if num_processes == 1:
        return tensor
    total = tensor.detach().clone()
    torch.distributed.all_reduce(total)
    return total


def value_of_first(value: float, num_processes: int, device: torch.device) -> float:
    """The first process's `value`."""
    if num_processes == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    torch.distributed.broadcast(shared, 0)
    return shared.item()


def leave_processes() -> None:
    """Ends what binds processes together: the first goes on alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
