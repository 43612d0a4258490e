"""Passes of a shape on this machine, on random weights: a roofline knows nothing of launches and thin matrices."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from workbench.console import progress
from workbench.cost.devices import MeasuredPass
from workbench.cost.shapes import ModelShape
from workbench.decode.costs import measure_pass_s
from workbench.decode.engine import Engine
from workbench.decode.static_engine import build_engine
from workbench.validate.machine import num_cores

ROWS = (1, 8, 16, 32, 64, 128)
"""From a single token to a packed pass of several blocks; in between times are interpolated."""
LARGEST_SHARE = 0.25
"""Of the memory that random weights may take."""
_MAX_ROWS = 512


def measure_passes(shape: ModelShape, value_bytes: int, memory_bytes: float) -> list[MeasuredPass]:
    """Passes at two depths on half of the cores, as target and drafter side by side have; none of too large a shape."""
    if value_bytes * shape.parameters > LARGEST_SHARE * memory_bytes:
        return []
    num_threads = torch.get_num_threads()
    torch.set_num_threads(max(1, num_cores() // 2))
    depths = sorted({max(1, shape.num_layers // 4), shape.num_layers})
    passes = []
    try:
        with progress(f"passes of {shape.name}", len(depths) * len(ROWS)) as advance:
            for num_layers in depths:
                engine = _build_engine(shape.with_layers(num_layers), value_bytes)
                for rows in ROWS:
                    seconds = measure_pass_s(engine, rows, rows)
                    passes.append(MeasuredPass(shape.name, value_bytes, num_layers, rows, seconds))
                    advance(1, f"{1e3 * seconds:.1f} ms")
    finally:
        torch.set_num_threads(num_threads)
    return passes


def _build_engine(shape: ModelShape, value_bytes: int) -> Engine:
    config = Qwen3Config(
        vocab_size=shape.vocab_rows,
        hidden_size=shape.width,
        intermediate_size=shape.inner_width,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_width,
        tie_word_embeddings=shape.is_tied,
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if value_bytes == 2 else torch.float32)
    return build_engine("eager", model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), _MAX_ROWS)
