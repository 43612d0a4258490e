"""What a GPU gives: pass times of Qwen3-8B shapes with random weights against the memory-bandwidth floor, and overlap.

No weights are downloaded. A forward pass of few rows must read every weight once, so its floor is the bytes of the
weights over the measured bandwidth.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from workbench.console import console
from workbench.decode.static_engine import CudaGraphEngine
from workbench.errors import WorkbenchError
from workbench.files import write_json
from workbench.validate.machine import describe_hardware, describe_versions

CONTEXT_TOKENS = 512
_TIMED_REPLAYS = 20
_WARM_REPLAYS = 3

QWEN3_8B = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
"""Shape of the published Qwen3-8B configuration."""


def check_gpu(path: Path, draft_length: int = 15, block_size: int = 16) -> None:
    """Measures passes of target and drafters, then two streams side by side; prints tables and writes JSON to `path`.

    Raises:
        WorkbenchError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise WorkbenchError("no CUDA device on this machine: gpu-check measures GPUs only")
    bandwidth = measure_bandwidth_bytes_per_second()
    target = build_engine_of_shape(36)
    drafters = {f"{layers}-layer drafter": build_engine_of_shape(layers) for layers in (36, 31)}
    verify_rows = draft_length + 1
    rows: list[dict[str, Any]] = [
        _measure("target", "autoregressive step", target, 1, bandwidth),
        _measure("target", "verification", target, verify_rows, bandwidth),
    ]
    for name, engine in drafters.items():
        rows.append(_measure(name, "draft pass", engine, block_size, bandwidth))
        for num_blocks in (1, 2, 4, 8):
            num_rows = verify_rows + num_blocks * block_size
            rows.append(_measure(name, f"packed pass, {num_blocks} blocks", engine, num_rows, bandwidth))
    overlaps = []
    for name, engine in drafters.items():
        for num_blocks in (1, 4):
            overlaps.append(_measure_overlap(name, target, verify_rows, engine, num_blocks, block_size))
    console.print(_render_passes(rows), _render_overlaps(overlaps))
    write_json(
        path,
        {
            "bandwidth_bytes_per_second": bandwidth,
            "context_tokens": CONTEXT_TOKENS,
            "passes": rows,
            "overlap": overlaps,
            "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
            "machine": {**describe_hardware(), "gpu": torch.cuda.get_device_name()},
            "versions": describe_versions(),
        },
    )
    console.print(f"wrote {path}")


def build_engine_of_shape(num_layers: int) -> CudaGraphEngine:
    """An engine over random bfloat16 weights of Qwen3-8B's shape with some number of layers."""
    config = Qwen3Config(**{**QWEN3_8B, "num_hidden_layers": num_layers})
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(default_dtype)
    model.config._attn_implementation = "sdpa"
    return CudaGraphEngine(model.eval().requires_grad_(False), CONTEXT_TOKENS + 512)


def measure_bandwidth_bytes_per_second() -> float:
    """Bytes read and written per second by a large copy on the device."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    destination = torch.empty_like(source)
    seconds = median_event_s(lambda: destination.copy_(source))
    return 2 * source.numel() / seconds


def median_event_s(run: Callable[[], object]) -> float:
    """Median seconds on the device between events around `run`."""
    for _ in range(_WARM_REPLAYS):
        run()
    seconds = []
    for _ in range(_TIMED_REPLAYS):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        seconds.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(seconds)


def _pass_over_context(engine: CudaGraphEngine, num_rows: int) -> Callable[[], torch.Tensor]:
    cache = engine.new_cache()
    engine.forward([1] * CONTEXT_TOKENS, cache, 1)

    def run() -> torch.Tensor:
        cache.truncate_to(CONTEXT_TOKENS)
        return engine.forward([1] * num_rows, cache, num_rows)

    return run


def _measure(role: str, name: str, engine: CudaGraphEngine, num_rows: int, bandwidth: float) -> dict[str, Any]:
    seconds = median_event_s(_pass_over_context(engine, num_rows))
    embeddings = engine.model.get_input_embeddings().weight
    read_bytes = sum(p.numel() * p.element_size() for p in engine.model.parameters())
    read_bytes -= embeddings.numel() * embeddings.element_size()  # Only the rows of the pass are read.
    floor_s = read_bytes / bandwidth
    return {
        "role": role,
        "pass": name,
        "rows": num_rows,
        "ms": 1e3 * seconds,
        "floor_ms": 1e3 * floor_s,
        "over_floor": seconds / floor_s,
    }


def _measure_overlap(
    name: str, target: CudaGraphEngine, verify_rows: int, drafter: CudaGraphEngine, num_blocks: int, block_size: int
) -> dict[str, Any]:
    """Times a verification and a packed pass alone and on two streams, the verification enqueued first."""
    verify = _pass_over_context(target, verify_rows)
    packed = _pass_over_context(drafter, verify_rows + num_blocks * block_size)
    side = torch.cuda.Stream()

    def both() -> None:
        side.wait_stream(torch.cuda.current_stream())
        verify()
        with torch.cuda.stream(side):
            packed()
        torch.cuda.current_stream().wait_stream(side)

    verify_s, packed_s, both_s = median_event_s(verify), median_event_s(packed), median_event_s(both)
    return {
        "drafter": name,
        "blocks": num_blocks,
        "verify_ms": 1e3 * verify_s,
        "packed_ms": 1e3 * packed_s,
        "both_ms": 1e3 * both_s,
        "hidden_fraction": (verify_s + packed_s - both_s) / min(verify_s, packed_s),
    }


def _render_passes(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Passes of Qwen3-8B shapes, CUDA graphs, bfloat16")
    for column in ("role", "pass", "rows", "ms", "floor ms", "over floor"):
        table.add_column(column)
    for row in rows:
        cells = (f"{row['ms']:.2f}", f"{row['floor_ms']:.2f}", f"{row['over_floor']:.2f}")
        table.add_row(row["role"], row["pass"], str(row["rows"]), *cells)
    return table


def _render_overlaps(overlaps: list[dict[str, Any]]) -> Table:
    table = Table(title="Two streams on one GPU")
    for column in ("drafter", "blocks", "verify ms", "packed ms", "both ms", "hidden"):
        table.add_column(column)
    for row in overlaps:
        times = (f"{row[key]:.2f}" for key in ("verify_ms", "packed_ms", "both_ms"))
        table.add_row(row["drafter"], str(row["blocks"]), *times, f"{row['hidden_fraction']:.0%}")
    return table
