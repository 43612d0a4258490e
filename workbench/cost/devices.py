"""Devices: how fast they read memory and multiply matrices, as their makers state it or as measured here."""

import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError
from workbench.host import memory_bytes

MEASURED = "measured"
"""Name of the device that this machine is, once measured."""
_GPU_LAYER_S = 10e-6
_MATRIX_SIZE = 2048
_COPY_BYTES = 2**28


@dataclass(frozen=True)
class MeasuredPass:
    """Time of a pass over a short context."""

    model: str
    """Name of its shape."""
    value_bytes: int
    num_layers: int
    rows: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator, or this machine."""

    name: str
    bytes_per_second: float
    """Memory bandwidth."""
    flops_per_second: float
    """Dense bfloat16 matrix products."""
    memory_bytes: float
    attained_bandwidth: float = 0.85
    """Share of the bandwidth that a decoding pass attains."""
    attained_flops: float = 0.7
    """Share of the matrix rate that a decoding pass of many rows attains."""
    attained_training: float = 0.4
    """Share of the matrix rate that a training step attains: usual for well-tuned training of dense models."""
    layer_s: float = _GPU_LAYER_S
    """Least time of a layer however small it is: on a GPU, the kernels of a captured graph one after the other."""
    keeps_scores: bool = False
    """Attention of a training step keeps its scores for the backward pass, as it does without a fused kernel."""
    passes: tuple[MeasuredPass, ...] = ()
    """Measured there; they stand in for the roofline."""
    source: str = "given on the command line"


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device(
            name="a100",
            bytes_per_second=2.039e12,
            flops_per_second=312e12,
            memory_bytes=80e9,
            source="datasheet of the A100 80GB SXM",
        ),
        Device(
            name="h100",
            bytes_per_second=3.35e12,
            flops_per_second=989e12,
            memory_bytes=80e9,
            source="datasheet of the H100 SXM",
        ),
        Device(
            name="h200",
            bytes_per_second=4.8e12,
            flops_per_second=989e12,
            memory_bytes=141e9,
            source="datasheet of the H200 SXM",
        ),
    )
}


def choose_device(text: str) -> Device:
    """A device by name, `measured`, or three numbers such as `4.8TB/s,989TFLOPS,141GB`.

    Raises:
        WorkbenchError: neither a known name nor three numbers with their units.
    """
    if text.lower() in DEVICES:
        return DEVICES[text.lower()]
    if text.lower() == MEASURED:
        return measure_device()
    pattern = r"([\d.]+)([GT])B/s,\s*([\d.]+)([GT])FLOPS,\s*([\d.]+)GB"
    match = re.fullmatch(pattern, text.strip(), re.IGNORECASE)
    if not match:
        raise WorkbenchError(
            f"--device is {text!r}: use one of {', '.join(DEVICES)}, {MEASURED} (this machine), or numbers such as "
            "4.8TB/s,989TFLOPS,141GB"
        )
    factor = {"g": 1e9, "t": 1e12}
    return Device(
        name=text,
        bytes_per_second=float(match[1]) * factor[match[2].lower()],
        flops_per_second=float(match[3]) * factor[match[4].lower()],
        memory_bytes=float(match[5]) * 1e9,
    )


def measure_device() -> Device:
    """This machine: a large copy, a large matrix product, and a layer too small to take time by itself."""
    import torch  # the other devices need no torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    on_gpu = torch.cuda.is_available()
    place = torch.device("cuda" if on_gpu else "cpu")
    source = torch.ones(_COPY_BYTES // 4, device=place)
    copy = torch.empty_like(source)
    matrix = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, dtype=torch.bfloat16, device=place)
    tiny: Any = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=8, num_attention_heads=1,
            num_key_value_heads=1, head_dim=32,
        )
    )  # fmt: skip
    tiny.to(place)
    row = torch.zeros(1, 1, dtype=torch.long, device=place)

    def pass_tiny() -> None:
        with torch.inference_mode():
            tiny(input_ids=row, use_cache=False)

    def median_s(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(7):
            start_s = time.perf_counter()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start_s)
        return statistics.median(seconds[2:])

    return Device(
        name=MEASURED,
        # Read once and written once.
        bytes_per_second=2 * _COPY_BYTES / median_s(lambda: copy.copy_(source)),
        flops_per_second=2 * _MATRIX_SIZE**3 / median_s(lambda: matrix @ matrix),
        memory_bytes=torch.cuda.get_device_properties(0).total_memory if on_gpu else memory_bytes(),
        # A large copy and product attain what they attain.
        attained_bandwidth=1.0,
        attained_flops=1.0,
        layer_s=median_s(pass_tiny) / 8,
        keeps_scores=not on_gpu,
        source=f"measured on {torch.cuda.get_device_name(0) if on_gpu else 'this machine, all its cores'}",
    )
