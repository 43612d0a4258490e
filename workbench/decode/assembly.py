"""Decoders put together: target, engine, source of drafts and shares of the machine, by method."""

import contextlib
import functools
from pathlib import Path
from typing import Any, Literal

import torch

from workbench.decode.calibration import load_calibration
from workbench.decode.cores import ShareOfMachine, split_cores, whole_machine
from workbench.decode.costs import measure_drafter_costs, measure_pass_s
from workbench.decode.decoder import Decoder, context_length
from workbench.decode.dflash import build_dflash_drafts
from workbench.decode.drafting import BlockDrafter
from workbench.decode.engine import Engine
from workbench.decode.hypotheses import RoundCosts
from workbench.decode.sources import InlineDrafts, NoDrafts, SynchronousDrafts
from workbench.decode.static_engine import build_engine
from workbench.decode.worker import WorkerDrafts, WorkerSettings
from workbench.drafter.dflash import is_dflash
from workbench.drafter.model import check_pair, load_drafter, read_spec
from workbench.errors import WorkbenchError
from workbench.recipe import DecodeOptions
from workbench.targets import Target

Method = Literal["autoregressive", "synchronous", "asynchronous"]


def build_decoder(
    method: Method,
    target: Target,
    drafter_folder: Path | str | None,
    options: DecodeOptions,
    costs: RoundCosts | None = None,
    drafter_delay_s: float = 0.0,
) -> Decoder:
    """Builds a decoder for one method.

    Autoregressive and asynchronous decoding give the target its share of the cores; synchronous decoding, whose two
    models take turns, has all of them.

    Args:
        method: Which drafts it uses.
        target: The model whose output is preserved.
        drafter_folder: The drafter; not needed for `autoregressive`.
        options: Draft length, hypotheses, engine, executor, acceptance rule, sampling, threads.
        costs: Pass times for the choice of hypotheses; None: measured now.
        drafter_delay_s: Artificial delay of the worker's passes, to measure how well drafting hides.

    Raises:
        WorkbenchError: the drafter is for another target, template, thinking mode or mask token.
    """
    max_rows = context_length(target) + 1
    engine = build_engine(options.engine, target.model, max_rows)
    target_cores, drafter_cores, target_threads, drafter_threads = split_cores(options)
    all_threads = target_threads + drafter_threads
    if method == "autoregressive":
        return Decoder(target, engine, NoDrafts(), options, target_threads, target_cores)
    if drafter_folder is None:
        raise WorkbenchError(f"{method} decoding needs a drafter")
    drafter_folder = Path(drafter_folder)
    if is_dflash(drafter_folder):
        if method != "synchronous":
            raise WorkbenchError(f"{drafter_folder} reads what the target has verified: it cannot draft meanwhile")
        drafts = build_dflash_drafts(target, drafter_folder, options, max_rows)
        return Decoder(target, drafts.engine, drafts, options, all_threads, None)
    spec = read_spec(drafter_folder)
    check_pair(spec, target)
    if options.draft_length > spec.block_size:
        raise WorkbenchError(
            f"decode.draft_length is {options.draft_length}, but this drafter's blocks hold {spec.block_size} tokens"
        )
    draft_length, max_blocks = options.draft_length, options.max_hypotheses
    # The drafter's passes run past the output: the draft under verification and the blocks behind it.
    drafter_rows = max_rows + draft_length + (max_blocks + 1) * spec.block_size
    measure_verify_s = functools.partial(_measure_verify_s, engine, draft_length)
    share_alone = whole_machine(options)
    verify_s = costs.verify_s if costs else measure_verify_s(share_alone)
    if method == "asynchronous" and options.executor == "worker":
        settings = WorkerSettings(
            drafter_folder=drafter_folder,
            dtype=options.drafter_dtype,
            device=str(target.model.device),
            engine=options.engine,
            max_rows=drafter_rows,
            draft_length=draft_length,
            max_blocks=max_blocks,
            stop_ids=target.stop_ids,
            verify_s=verify_s,
            costs=costs,
            cores=drafter_cores,
            threads=drafter_threads,
            share_at_a_miss=share_alone,
            delay_s=drafter_delay_s,
        )
        worker = WorkerDrafts(settings)
        if costs is None and max_blocks:
            worker.measure_slowdown(
                functools.partial(measure_verify_s, share_alone),
                functools.partial(measure_verify_s, ShareOfMachine(target_threads, target_cores)),
            )
        return Decoder(target, engine, worker, options, target_threads, target_cores, share_alone)
    block_drafter = _build_block_drafter(target, drafter_folder, options, drafter_rows, verify_s, costs, all_threads)
    source: Any = SynchronousDrafts(block_drafter)
    if method == "asynchronous":
        stream = torch.cuda.Stream() if options.executor == "stream" else None
        source = InlineDrafts(block_drafter, stream)
    return Decoder(target, engine, source, options, all_threads, None)


def _measure_verify_s(engine: Engine, draft_length: int, share: ShareOfMachine) -> float:
    with share:
        return measure_pass_s(engine, draft_length + 1, draft_length + 1)


def _build_block_drafter(
    target: Target,
    drafter_folder: Path,
    options: DecodeOptions,
    max_rows: int,
    verify_s: float,
    costs: RoundCosts | None,
    threads: int,
) -> BlockDrafter:
    if options.executor == "stream" and target.model.device.type != "cuda":
        raise WorkbenchError("decode.executor is stream, but the target is on the CPU: use worker or inline")
    drafter = load_drafter(drafter_folder, options.drafter_dtype, str(target.model.device))
    engine = build_engine(options.engine, drafter.model, max_rows)
    calibration = load_calibration(drafter_folder, options.draft_length)
    if costs is None:
        with ShareOfMachine(threads, None):
            costs = measure_drafter_costs(
                engine, drafter.spec, options.draft_length, options.max_hypotheses, verify_s, contextlib.nullcontext()
            )
    return BlockDrafter(
        engine, drafter.spec, options.draft_length, options.max_hypotheses, costs, calibration, target.stop_ids
    )
