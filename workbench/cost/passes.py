"""How long a forward pass takes: bytes over bandwidth or arithmetic over the matrix rate, whichever is longer.

Where passes of a shape were measured, their times are interpolated instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.cost.devices import Device, MeasuredPass
from workbench.cost.shapes import ModelShape


@dataclass(frozen=True)
class Pass:
    """A decoding pass of one sequence, or of several side by side."""

    rows: int
    """New rows of each sequence."""
    context: int
    """Cached tokens of each sequence."""
    logit_rows: int
    """Rows of each sequence whose logits are computed."""
    sequences: int = 1


def pass_bytes(shape: ModelShape, work: Pass, value_bytes: int) -> float:
    """Bytes that a pass must read: every weight once, and the cache."""
    weights = shape.num_layers * shape.layer_parameters + (shape.head_parameters if work.logit_rows else 0)
    cached = work.sequences * (work.context + work.rows) * shape.cache_values_per_token
    return value_bytes * (weights + cached)


def pass_flops(shape: ModelShape, work: Pass) -> float:
    """Arithmetic of the matrix products and of attention."""
    layers = 2 * work.rows * shape.num_layers * shape.layer_parameters
    keys = work.context + work.rows
    attention = 4 * work.rows * keys * shape.num_heads * shape.head_width * shape.num_layers
    return work.sequences * (layers + attention + 2 * work.logit_rows * shape.head_parameters)


def pass_s(shape: ModelShape, work: Pass, device: Device, value_bytes: int) -> float:
    """Seconds of a pass."""
    own = [entry for entry in device.passes if (entry.model, entry.value_bytes) == (shape.name, value_bytes)]
    if own and work.sequences == 1:
        return interpolate_s(own, shape.num_layers, work.rows)
    reading_s = pass_bytes(shape, work, value_bytes) / (device.bytes_per_second * device.attained_bandwidth)
    # float32 products take the slow units: about twice the time at best, and never less.
    rate = device.flops_per_second * device.attained_flops * (1.0 if value_bytes == 2 else 0.5)
    return max(reading_s, pass_flops(shape, work) / rate, shape.num_layers * device.layer_s)


def interpolate_s(passes: Sequence[MeasuredPass], num_layers: int, rows: int) -> float:
    """Seconds between measured passes: linear in rows, piece by piece, and in layers."""
    depths = [entry.num_layers for entry in passes]
    shallow, deep = min(depths), max(depths)
    times = []
    for depth in (shallow, deep):
        points = sorted((entry.rows, entry.seconds) for entry in passes if entry.num_layers == depth)
        known_rows, seconds = (np.array(column, dtype=float) for column in zip(*points, strict=True))
        beyond = max(0.0, rows - known_rows[-1]) * (seconds[-1] - seconds[-2]) / (known_rows[-1] - known_rows[-2])
        times.append(float(np.interp(rows, known_rows, seconds) + beyond))
    if shallow == deep:
        return times[0] * num_layers / deep
    return times[0] + (num_layers - shallow) * (times[1] - times[0]) / (deep - shallow)
