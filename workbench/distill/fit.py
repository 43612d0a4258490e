"""One distillation: from a drafter, its target and a corpus to trained weights and a report."""

import contextlib
import csv
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from workbench.console import console, progress
from workbench.corpus.responses import Corpus, load_corpus
from workbench.distill.curve import forecast
from workbench.distill.data import DistillationData, check_corpus
from workbench.distill.evaluation import draw_evaluation_blocks
from workbench.distill.module import Distillation
from workbench.distill.norms import lean_norms
from workbench.distill.precision import computes_in_bfloat16, trainer_precision
from workbench.distill.processes import choose_strategy, count_processes, is_sharded, leave_processes
from workbench.distill.recomputation import recomputing
from workbench.distill.sharding import whole_copy
from workbench.distill.teacher import looks_at_target
from workbench.distill.teacher_cache import TeacherCache, plan_cache
from workbench.drafter.layers import build_drafter
from workbench.drafter.model import Drafter, save_drafter
from workbench.errors import WorkbenchError
from workbench.files import whole_file, whole_folder, write_json
from workbench.launch import check_size, rank
from workbench.recipe import DistillOptions, Recipe
from workbench.targets import Target, load_target

CHECKPOINTS = "checkpoints"
"""Folder of a training's checkpoints, inside its own."""
TEACHER_CACHE = "teacher"
"""Folder of the target's distributions, beside that of the training: other trainings on the corpus read it too."""
NUM_VALIDATION_STARTS = 512
"""Held-out places at which a training is validated, each with a known and a masked anchor."""


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """What a training took and what it reached."""

    steps: int
    clean_tokens: int
    """Prompt and response tokens that passed through the drafter, padding aside."""
    block_rows: int
    """Supervised block rows."""
    seconds: float
    tokens_per_second: float
    """Clean tokens and block rows together."""
    final: dict[str, float]
    """Held-out figures at the end: loss terms, acceptance and agreement, anchored and masked."""
    curve: list[dict[str, float]]
    """The same at every validation, with steps, seconds and tokens."""
    forecasts: list[dict[str, Any]]
    """What the curve says of more training, see `workbench.distill.curve.forecast`; none for a short curve."""


def distill(recipe: Recipe, corpus_folder: Path, folder: Path) -> None:
    """Trains the recipe's drafter; continues from its last checkpoint after an interruption.

    Writes:
        folder/drafter: The trained drafter, with the target's tokenizer.
        folder/learning_curve.csv, folder/log: Held-out figures at every validation; losses along the way.
        folder/distill.json: The report, written last.
    """
    options = recipe.distill
    check_size(count_processes(options), options.nodes)
    corpus = load_corpus(corpus_folder)
    # Several processes take it, or their part of it, from there to their own devices.
    place = {"device": "cpu"} if count_processes(options) > 1 or is_sharded(options) else {}
    target = load_target(dataclasses.replace(recipe.target, **place))
    drafter = build_drafter(target, recipe)
    console.print(
        f"distilling a drafter of {drafter.num_layers} layers from {len(corpus.train)} responses of {target.identity}"
    )
    report = fit_drafter(drafter, target, corpus, options, folder, recipe.seed, draft_length=recipe.decode.draft_length)
    if rank() > 0:
        return
    with whole_folder(folder / "drafter") as temporary:
        save_drafter(drafter, temporary, target.tokenizer)
    write_curve(folder / "learning_curve.csv", report.curve)
    write_json(folder / "distill.json", dataclasses.asdict(report))
    console.print(
        f"distilled in {report.seconds:.0f} s: estimated acceptance length "
        f"{report.final['acceptance_anchored']:.2f} anchored, {report.final['acceptance_masked']:.2f} masked"
    )


def fit_drafter(
    drafter: Drafter,
    target: Target,
    corpus: Corpus,
    options: DistillOptions,
    folder: Path,
    seed: int,
    draft_length: int | None = None,
    family: type[Distillation] = Distillation,
) -> FitReport:
    """Trains a drafter's weights in place, from the last checkpoint in `folder` if there is one.

    Args:
        drafter: Changed; left in eval mode without gradients. Where weights are in shards, only the first process has
            them whole in the end.
        target: Gives the distributions to learn.
        corpus: Its training responses, and held-out ones for validation.
        options: The training.
        folder: Where checkpoints and logs go.
        seed: Of batches and blocks.
        draft_length: Slots that the estimated acceptance counts; None: as many as a block has masks.
        family: How a drafter of this kind computes its loss.

    Raises:
        WorkbenchError: data that cannot be learned from, a loss that is no number, or too little memory.
    """
    if draft_length is None:
        draft_length = drafter.spec.block_size - 1
    vocab_rows = min(model.get_input_embeddings().weight.shape[0] for model in (drafter.model, target.model))
    check_corpus(corpus, target, vocab_rows)
    lightning.seed_everything(seed, verbose=False)
    held_out = draw_evaluation_blocks(corpus.held_out, NUM_VALIDATION_STARTS, seed)
    num_processes = count_processes(options)
    if len(corpus.train) < num_processes:
        raise WorkbenchError(
            f"{num_processes} processes cannot share {len(corpus.train)} training responses: write more, or lower "
            "distill.devices or distill.nodes"
        )
    # Batches are cut for all processes together: what is trained on does not depend on their number.
    shared_options = dataclasses.replace(options, batch_size=options.batch_size * num_processes)
    data = DistillationData(corpus.train, held_out, shared_options, seed)
    cache = None
    if options.teacher == "cache" and looks_at_target(options):
        cache = _open_cache(drafter, target, corpus, options, folder.parent / TEACHER_CACHE)
    module = family(drafter, target, options, draft_length, cache)
    last_checkpoint = folder / CHECKPOINTS / "last.ckpt"
    with (
        silent_lightning(),
        training_mode(drafter.model, options),
        progress("distilling, per cent", total=100) as advance,
    ):
        trainer = build_trainer(options, folder, advance)
        with _clear_memory_errors(options):
            trainer.fit(module, data, ckpt_path=last_checkpoint if last_checkpoint.is_file() else None)
            module.finish()
            if not module.curve or module.curve[-1]["step"] != module.global_step:
                trainer.validate(module, data, verbose=False)
    if is_sharded(options):
        drafter.model = whole_copy(drafter.model) or drafter.model
    leave_processes()
    drafter.model.requires_grad_(False).eval()
    return build_report(module)


def _open_cache(
    drafter: Drafter, target: Target, corpus: Corpus, options: DistillOptions, folder: Path
) -> TeacherCache:
    vocab_size = min(model.get_output_embeddings().weight.shape[0] for model in (drafter.model, target.model))
    plan = plan_cache(corpus, target.fingerprint, vocab_size, options.teacher_top_k, computes_in_bfloat16(options))
    return TeacherCache(folder, corpus, plan)


def build_report(module: Distillation) -> FitReport:
    """The report of a finished training."""
    point = module.curve[-1]
    seconds = module.clock.elapsed_s()
    counts = ("step", "seconds", "clean_tokens", "block_rows")
    forecasts = [
        forecast(module.curve, f"acceptance_{name}", module.draft_length + 1, axis)
        for axis in ("seconds", "clean_tokens")
        for name in module.acceptance
        if f"acceptance_{name}" in point
    ]
    return FitReport(
        steps=module.global_step,
        clean_tokens=module.num_clean_tokens,
        block_rows=module.num_block_rows,
        seconds=seconds,
        tokens_per_second=(module.num_clean_tokens + module.num_block_rows) / seconds,
        final={key: value for key, value in point.items() if key not in counts},
        curve=module.curve,
        forecasts=[entry for entry in forecasts if entry is not None],
    )


def write_curve(path: Path, curve: list[dict[str, float]]) -> None:
    """Writes the learning curve as CSV."""
    with whole_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(curve[0]))
        writer.writeheader()
        writer.writerows(curve)


class _ConsoleProgress(Callback):
    """Shows how far the training is, in per cent, with its latest figures."""

    def __init__(self, advance: Callable[[int, str], None]):
        self.advance = advance
        self.shown = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        done = min(100, int(100 * pl_module.progress()))
        if done > self.shown:
            note = f"step {pl_module.global_step}, loss {float(outputs['loss']):.3f}"
            if pl_module.curve:
                point = pl_module.curve[-1]
                note += f", acceptance {point['acceptance_anchored']:.2f}"
                if "acceptance_masked" in point:
                    note += f" / {point['acceptance_masked']:.2f} masked"
            self.advance(done - self.shown, note)
            self.shown = done


def build_trainer(options: DistillOptions, folder: Path, advance: Callable[[int, str], None]) -> lightning.Trainer:
    """The trainer of a distillation, which writes into `folder` and reports per cents to `advance`."""
    return lightning.Trainer(
        accelerator="auto",
        devices=options.devices,
        num_nodes=options.nodes,
        strategy=choose_strategy(options),
        use_distributed_sampler=False,  # a batch is divided by the module, held-out blocks are not
        precision=trainer_precision(options),
        inference_mode=False,  # weights that are gathered or cast during validation must be fit for training too
        max_steps=options.steps,
        max_epochs=-1,
        accumulate_grad_batches=options.accumulate,
        gradient_clip_val=options.gradient_clip,
        val_check_interval=options.validate_every * options.accumulate,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=10,
        logger=CSVLogger(folder, name="log"),
        callbacks=[
            ModelCheckpoint(
                folder / CHECKPOINTS,
                filename="last",
                every_n_epochs=1,
                save_on_train_epoch_end=False,  # but after every validation, whose figures the checkpoint then holds
                enable_version_counter=False,
            ),
            _ConsoleProgress(advance),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@contextlib.contextmanager
def training_mode(model: Any, options: DistillOptions) -> Iterator[None]:
    """Within, all weights are trained, layers are compiled and recomputed for the gradient as the options say.

    A compiler makes lean norms of its own.
    """
    model.requires_grad_(True).train()
    layers = model.base_model.layers
    if options.compile:
        for layer in layers:  # all alike: compiled once
            layer.compile()
    try:
        with (
            recomputing(model) if options.checkpoint_activations else contextlib.nullcontext(),
            contextlib.nullcontext() if options.compile else lean_norms(model),
        ):
            yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None


@contextlib.contextmanager
def _clear_memory_errors(options: DistillOptions) -> Iterator[None]:
    """Turns running out of memory into a line with the two knobs that help."""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU allocator raises a plain one
        is_memory = isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)
        if not is_memory:
            raise
        raise WorkbenchError(
            f"out of memory in a training step: lower distill.batch_size (now {options.batch_size}) or "
            f"distill.blocks_per_sequence (now {options.blocks_per_sequence})"
        ) from error


@contextlib.contextmanager
def silent_lightning() -> Iterator[None]:
    """Keeps Lightning's own remarks off the screen; ours say what is going on."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\.")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
