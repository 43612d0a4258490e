"""Throughput: a distillation step against plain next-token training of the same model on as many rows.

Both run in one process and take turns, step by step. The distillation is timed as it really runs, through the
trainer: drawing blocks, the frozen target's pass, both losses, the backward pass, clipping, the optimizer and all
bookkeeping are on the clock. The plain side is a `transformers` forward with `labels`, its backward pass, clipping and
the same optimizer, and one forward of the target over the batch's clean sequences, which the distillation needs too.
Rows are those of the distillation batch, padding included: the plain model is given sequences of the same length. Both
compute in the recipe's precision; under `bf16-true` the plain model even keeps weights and optimizer in bfloat16.
"""

import copy
import dataclasses
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from workbench.console import console, progress
from workbench.corpus.responses import Corpus, load_corpus
from workbench.cost.training import THROUGHPUT_FILE
from workbench.distill.data import DistillationData
from workbench.distill.evaluation import draw_evaluation_blocks
from workbench.distill.fit import build_trainer, silent_lightning, training_mode
from workbench.distill.module import Distillation
from workbench.distill.precision import choose_precision
from workbench.drafter.blocks import BlockBatch
from workbench.drafter.layers import build_drafter
from workbench.errors import WorkbenchError
from workbench.files import write_json
from workbench.recipe import Recipe
from workbench.targets import Target, load_target
from workbench.validate.machine import cores_used_by_others, describe_hardware, describe_versions, read_cpu_ticks
from workbench.validate.statistics import median_of, median_ratio_of

LARGEST_RATIO = 1.3
"""Time per row, over that of plain training, up to which a step is as cheap as it should be."""
_WARM_STEPS = 3


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Seconds of one turn."""

    rows: int
    distillation_s: float
    plain_s: float
    target_s: float


def measure_throughput(recipe: Recipe, num_steps: int) -> Path:
    """Measures `num_steps` turns on the recipe's corpus; writes `throughput.json` into the run folder."""
    if num_steps < 2:
        raise WorkbenchError(f"--steps is {num_steps}: an interval needs at least 2")
    corpus, target = load_corpus(recipe.run_folder / "corpus"), load_target(recipe.target)
    before = read_cpu_ticks()
    times = time_steps(recipe, corpus, target, num_steps)
    after = read_cpu_ticks()
    seconds = {
        "distillation": [time.distillation_s for time in times],
        "plain": [time.plain_s for time in times],
        "target": [time.target_s for time in times],
    }
    together = [time.plain_s + time.target_s for time in times]
    ratio = median_ratio_of(seconds["distillation"], together)
    result = {
        "recipe": recipe.name,
        "precision": choose_precision(recipe.distill.precision),
        "batch_size": recipe.distill.batch_size,
        "blocks_per_sequence": recipe.distill.blocks_per_sequence,
        "block_size": recipe.drafter.block_size,
        "num_steps": num_steps,
        "rows_per_step": median_of([time.rows for time in times]).value,
        "step_ms": {name: median_of([1e3 * value for value in values]).as_dict() for name, values in seconds.items()},
        "row_us": {
            "distillation": _per_row(times, seconds["distillation"]),
            "plain_and_target": _per_row(times, together),
        },
        "ratio": ratio.as_dict(),
        "largest_ratio": LARGEST_RATIO,
        "others_cores": cores_used_by_others(before, after) if before and after else None,
        "hardware": describe_hardware(),
        "versions": describe_versions(),
    }
    path = recipe.run_folder / THROUGHPUT_FILE
    write_json(path, result)
    console.print(
        f"a row of distillation costs {ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f}) that of plain training "
        f"and a target pass; {LARGEST_RATIO}x is the limit"
    )
    console.print(f"wrote {path}")
    return path


def time_steps(recipe: Recipe, corpus: Corpus, target: Target, num_steps: int) -> list[StepTimes]:
    """Trains the recipe's drafter for some steps, and a twin of it plainly in turn."""
    options = dataclasses.replace(
        recipe.distill,
        steps=num_steps + _WARM_STEPS,
        max_minutes=None,
        accumulate=1,
        devices=1,
        nodes=1,
        strategy="auto",
        teacher="online",
        validate_every=num_steps + _WARM_STEPS + 1,
    )
    drafter, twin = build_drafter(target, recipe), build_drafter(target, recipe)
    module = Distillation(drafter, target, options, recipe.decode.draft_length)
    data = DistillationData(corpus.train, draw_evaluation_blocks(corpus.held_out, 1, 0), options, recipe.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        silent_lightning(),
        training_mode(drafter.model, options),
        progress("throughput: steps", num_steps + _WARM_STEPS) as advance,
    ):
        turns = _Turns(_PlainTraining(twin.model, target, module), recipe.drafter.block_size, advance)
        trainer = build_trainer(options, Path(folder), lambda count, note: None)
        trainer.callbacks.append(turns)  # pyright: ignore[reportAttributeAccessIssue]
        trainer.fit(module, data)
    return turns.times[_WARM_STEPS:]


class _PlainTraining:
    """Next-token training of a stock model in the precision of a distillation, and the target's forward."""

    def __init__(self, model: Any, target: Target, module: Distillation) -> None:
        self.options = module.options
        self.precision = choose_precision(module.options.precision)
        self.model, self.target_model = model.train(), target.model
        if self.precision == "bf16-true":
            # The least work that plain training can do: no float32 weights to keep, nothing to cast.
            self.model, self.target_model = model.bfloat16(), copy.deepcopy(target.model).bfloat16()
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=module.options.weight_decay, fused=True
        )

    def train(self, tokens_BR: torch.Tensor) -> None:
        """One step."""
        with self._precision():
            loss = self.model(input_ids=tokens_BR, labels=tokens_BR, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.gradient_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def consult(self, tokens_BT: torch.Tensor) -> None:
        """One forward of the target."""
        with self._precision():
            self.target_model(input_ids=tokens_BT, use_cache=False)

    def _precision(self) -> Any:
        if self.precision != "bf16-mixed":
            return nullcontext()
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16)


class _Turns(Callback):
    """Lets a plain step follow each step of the trainer and notes what both took."""

    def __init__(self, plain: _PlainTraining, block_size: int, advance: Callable[[int, str], None]) -> None:
        self.plain, self.block_size, self.advance = plain, block_size, advance
        self.times: list[StepTimes] = []
        self._started_s = 0.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._started_s = _now_s(pl_module.device)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: BlockBatch, batch_idx: int) -> None:
        distilled_s = _now_s(pl_module.device)
        num_sequences, num_blocks = batch.starts_BA.shape
        num_rows = batch.tokens_BT.shape[1] + num_blocks * self.block_size
        vocab_size = pl_module.vocab_size
        tokens_BR = torch.randint(vocab_size, (num_sequences, num_rows), device=pl_module.device)
        drawn_s = _now_s(pl_module.device)
        self.plain.train(tokens_BR)
        trained_s = _now_s(pl_module.device)
        self.plain.consult(batch.tokens_BT)
        consulted_s = _now_s(pl_module.device)
        self.times.append(
            StepTimes(
                rows=num_sequences * num_rows,
                distillation_s=distilled_s - self._started_s,
                plain_s=trained_s - drawn_s,
                target_s=consulted_s - trained_s,
            )
        )
        self.advance(1, f"{num_sequences * num_rows} rows")
        self._started_s = _now_s(pl_module.device)


def _per_row(times: list[StepTimes], seconds: list[float]) -> dict[str, Any]:
    return median_of([1e6 * spent / time.rows for spent, time in zip(seconds, times, strict=True)]).as_dict()


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
