"""What a distillation takes: rows, arithmetic, hours, memory of a device by part, disk; and its corpus before it."""

import math
from dataclasses import dataclass
from pathlib import Path

from workbench.cost.devices import Device
from workbench.cost.passes import Pass, pass_s
from workbench.cost.shapes import ModelShape
from workbench.files import read_json

THROUGHPUT_FILE = "throughput.json"
"""What the throughput command measured, in a run folder."""
FLOAT32 = 4
BFLOAT16 = 2
_LOSS_LOGITS = 1 << 26  # rows of a chunk times vocabulary, see distill/losses.py
_LOSS_COPIES = 5  # logits and log-probabilities of both models, and a gradient


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the plan assumes of corpus and distillation."""

    num_responses: int
    prompt_tokens: float
    """Mean."""
    response_tokens: float
    """Mean."""
    steps: int
    batch_size: int
    """Sequences per forward and device."""
    accumulate: int
    blocks_per_sequence: int
    block_size: int
    num_devices: int
    """For which batch_size and accumulate are meant: they give the sequences of a step."""
    autoregressive: bool
    """An auxiliary loss on the clean rows of responses."""
    checkpoints_activations: bool
    averages_weights: bool
    computes_in_bfloat16: bool
    shards: bool
    """Weights, optimizer and target are spread over the devices."""
    target_value_bytes: int
    max_minutes: float | None = None
    generation_batch: int = 64
    row_s: float | None = None
    """Measured time of a row of a step on this very device."""

    @property
    def clean_tokens(self) -> float:
        """Of a sequence."""
        return self.prompt_tokens + self.response_tokens

    @property
    def block_rows(self) -> int:
        """Of a sequence."""
        return self.blocks_per_sequence * self.block_size

    @property
    def rows(self) -> float:
        """Of a sequence."""
        return self.clean_tokens + self.block_rows


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """For one number of devices; bytes and hours."""

    num_devices: int
    steps: int
    sequences: float
    epochs: float
    rows: float
    """Clean and block rows of all steps."""
    flops: float
    hours: float
    device_hours: float
    memory_bytes: dict[str, float]
    """Of one device, by part."""
    fits: bool
    checkpoint_bytes: float
    """Of a resumable checkpoint."""
    drafter_bytes: float
    """Of the finished drafter, float32."""


@dataclass(frozen=True, kw_only=True)
class CorpusCost:
    """Of the responses, on one device."""

    tokens: float
    """Prompts and responses."""
    device_hours: float
    disk_bytes: float


def plan_training(
    target: ModelShape, drafter: ModelShape, training: Training, device: Device, num_devices: int
) -> TrainingCost:
    """Cost of a distillation whose steps are shared by `num_devices`: the same training, sooner or later."""
    per_step = training.batch_size * training.accumulate * training.num_devices
    step_flops = per_step * sequence_flops(target, drafter, training)
    if training.row_s is not None:
        step_s = per_step * training.rows * training.row_s / num_devices
    else:
        step_s = step_flops / (device.flops_per_second * device.attained_training * num_devices)
    steps = training.steps
    if training.max_minutes is not None:
        steps = min(steps, max(1, int(60 * training.max_minutes / step_s)))
    memory_bytes = memory_parts(target, drafter, training, device, num_devices)
    weights = FLOAT32 * drafter.parameters
    return TrainingCost(
        num_devices=num_devices,
        steps=steps,
        sequences=steps * per_step,
        epochs=steps * per_step / training.num_responses,
        rows=steps * per_step * training.rows,
        flops=steps * step_flops,
        hours=steps * step_s / 3600,
        device_hours=num_devices * steps * step_s / 3600,
        memory_bytes=memory_bytes,
        fits=sum(memory_bytes.values()) <= device.memory_bytes,
        checkpoint_bytes=(4 if training.averages_weights else 3) * weights,
        drafter_bytes=weights,
    )


def sequence_flops(target: ModelShape, drafter: ModelShape, training: Training) -> float:
    """Arithmetic of one sequence in one step: the drafter forward and backward, the target forward."""
    clean, size = training.clean_tokens, training.block_size
    labelled = training.block_rows + (training.response_tokens if training.autoregressive else 0)
    clean_pairs = clean**2 / 2
    # A block starts somewhere in the response and sees what comes before it, and itself.
    block_pairs = training.block_rows * (training.prompt_tokens + training.response_tokens / 2 + size)
    drafter_forward = (
        2 * training.rows * drafter.num_layers * drafter.layer_parameters
        + 4 * (clean_pairs + block_pairs) * drafter.num_heads * drafter.head_width * drafter.num_layers
        + 2 * labelled * drafter.head_parameters
    )
    target_forward = (
        2 * clean * target.num_layers * target.layer_parameters
        + 4 * clean_pairs * target.num_heads * target.head_width * target.num_layers
        + 2 * labelled * target.head_parameters
    )
    return drafter_forward * (4 if training.checkpoints_activations else 3) + target_forward


def memory_parts(
    target: ModelShape, drafter: ModelShape, training: Training, device: Device, num_devices: int
) -> dict[str, float]:
    """Bytes that a device holds at the height of a step."""
    shards = num_devices if training.shards else 1
    computing = BFLOAT16 if training.computes_in_bfloat16 else FLOAT32
    own = drafter.parameters / shards
    target_bytes = training.target_value_bytes
    if training.computes_in_bfloat16 and target_bytes == FLOAT32:
        target_bytes += BFLOAT16  # a copy to compute with
    parts = {
        "weights": FLOAT32 * own + (BFLOAT16 * own if training.computes_in_bfloat16 else 0),
        "gradients": FLOAT32 * own,
        "optimizer": 2 * FLOAT32 * own,
        "averages": FLOAT32 * own if training.averages_weights else 0.0,
        "target": target_bytes * target.parameters / shards,
        "activations": _activation_bytes(drafter, training, device, computing),
        "losses": _LOSS_COPIES * FLOAT32 * min(_LOSS_LOGITS, training.batch_size * training.rows * drafter.vocab_rows),
    }
    return {name: value for name, value in parts.items() if value}


def _activation_bytes(drafter: ModelShape, training: Training, device: Device, computing: int) -> float:
    rows = training.batch_size * training.rows
    heads = (drafter.num_heads + 2 * drafter.num_key_value_heads) * drafter.head_width
    attended = drafter.num_heads * drafter.head_width
    # Kept for the backward pass: inputs and outputs of both norms, queries, keys and values before and after norm and
    # rotation, what was attended, and four inner tensors of the feed-forward layer.
    of_layer = rows * (4 * drafter.width + 2 * heads + attended + 4 * drafter.inner_width) * computing
    if device.keeps_scores:
        size = training.block_size
        pairs = training.clean_tokens**2 + training.block_rows * (training.clean_tokens + size)
        of_layer += 2 * training.batch_size * pairs * drafter.num_heads * computing
    if training.checkpoints_activations:
        return of_layer + drafter.num_layers * rows * drafter.width * computing
    return drafter.num_layers * of_layer


def plan_corpus(target: ModelShape, training: Training, device: Device) -> CorpusCost:
    """Cost of the target's responses, written in batches on one device."""
    batch = training.generation_batch
    context = round(training.prompt_tokens + training.response_tokens / 2)
    token_s = pass_s(target, Pass(1, context, 1, batch), device, BFLOAT16)
    prompt_s = pass_s(target, Pass(round(training.prompt_tokens), 0, 1, batch), device, BFLOAT16)
    num_batches = math.ceil(training.num_responses / batch)
    tokens = training.num_responses * training.clean_tokens
    return CorpusCost(
        tokens=tokens,
        device_hours=num_batches * (prompt_s + training.response_tokens * token_s) / 3600,
        disk_bytes=4 * tokens,
    )


def read_row_s(run_folder: Path) -> float | None:
    """Measured time of a row of a recipe's distillation step, if its throughput was measured."""
    path = run_folder / THROUGHPUT_FILE
    return 1e-6 * read_json(path)["row_us"]["distillation"]["median"] if path.is_file() else None
