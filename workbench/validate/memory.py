"""Memory by role: what target and drafter hold, computed from their shapes, and what their processes took at most."""

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

_MIB = 2**20


def weights_mib(model: Any) -> float:
    """Weights of a model; a head that is tied to the embedding counts once."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters()) / _MIB


def folder_weights_mib(folder: Path, dtype: torch.dtype) -> float:
    """Weights of a drafter folder, in the precision that it is loaded in."""
    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as tensors:
            count += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return count * dtype.itemsize / _MIB


def cache_mib(config: Any, num_rows: int, element_bytes: int) -> float:
    """Keys and values of a sequence of `num_rows` tokens."""
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    row_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head_width * element_bytes
    return num_rows * row_bytes / _MIB


def peak_mib(process_id: int | str = "self") -> float | None:
    """Most memory that a process has held; None where there is no /proc or no such process."""
    try:
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    except OSError:
        return None
    peak = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return int(peak) / 1024 if peak else None


def peak_device_mib(device: torch.device) -> float | None:
    """Most memory that this process has held on a GPU; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) / _MIB if device.type == "cuda" else None
