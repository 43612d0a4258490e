"""The decoding loop: one for all methods, whose output law is the target's whatever the source drafts."""

import functools
import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from workbench.decode.acceptance import accept, cut_emission
from workbench.decode.calibration import load_calibration
from workbench.decode.costs import measure_drafter_costs, measure_pass_s
from workbench.decode.dflash import build_dflash_drafts
from workbench.decode.drafting import BlockDrafter, Draft
from workbench.decode.engine import Engine
from workbench.decode.hypotheses import RoundCosts
from workbench.decode.sampling import SamplingSettings, SeededRandomness
from workbench.decode.sources import DraftSource, InlineDrafts, NoDrafts, SynchronousDrafts
from workbench.decode.static_engine import build_engine
from workbench.decode.worker import WorkerDrafts, WorkerSettings
from workbench.drafter.dflash import is_dflash
from workbench.drafter.model import check_pair, load_drafter, read_spec
from workbench.errors import WorkbenchError
from workbench.recipe import DecodeOptions
from workbench.targets import Target

Method = Literal["autoregressive", "synchronous", "asynchronous"]


@dataclass(frozen=True)
class Round:
    """One verification. Seconds are of the monotonic clock's differences."""

    num_accepted: int
    num_emitted: int
    """Accepted tokens and the bonus; fewer where a stop token or the length limit cut the output."""
    draft_length: int
    outcome: str
    """Of the hypotheses that the draft came from; see `Draft.outcome`."""
    num_hypotheses: int
    verify_s: float
    draft_s: float
    """Draft pass in this round; 0 after a hit."""
    packed_s: float
    """Packed pass that ran beside the last verification."""
    round_s: float
    spans: list[tuple[str, str, float, float]] = field(default_factory=list)
    """(role, name, start, stop) in seconds of the monotonic clock."""


@dataclass
class DecodeStatistics:
    """What one generation cost, and what it gained."""

    prefill_s: float = 0.0
    """From the call to the first token."""
    decode_s: float = 0.0
    """From the first token to the last."""
    rounds: list[Round] = field(default_factory=list)
    emit_times_s: list[float] = field(default_factory=list)
    """For every token, seconds from the call to its emission."""
    num_failures: int = 0
    """Rounds without a draft because the drafter died, hung or fell behind."""

    @property
    def acceptance_length(self) -> float:
        """Emitted tokens per round, bonus included; the first token (prefill) belongs to no round."""
        return sum(r.num_emitted for r in self.rounds) / len(self.rounds) if self.rounds else float("nan")


@dataclass
class Generation:
    """A finished output."""

    token_ids: list[int]
    """Without the prompt; ends with the stop token where one ended it."""
    text: str
    stop_reason: Literal["stop", "length"]
    statistics: DecodeStatistics


class Decoder:
    """Generates from the target with drafts of one source. Use as a context manager, or call `close`.

    Args:
        target: The model whose output is preserved.
        engine: Runs it.
        source: Of drafts.
        options: Default sampling settings and the acceptance rule.
        threads: CPU threads of the target while generating.
        cores: CPU cores that the target stays on while generating; None: any.
    """

    def __init__(
        self,
        target: Target,
        engine: Engine,
        source: DraftSource,
        options: DecodeOptions,
        threads: int,
        cores: frozenset[int] | None,
    ) -> None:
        self.target = target
        self.engine = engine
        self.source = source
        self.options = options
        self.observer: Callable[[Draft, list[int]], None] | None = None
        """Called after every verification with the draft and what was emitted for it (calibration)."""
        self._threads = threads
        self._cores = cores

    def __enter__(self) -> "Decoder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def worker_id(self) -> int | None:
        """Id of the drafter's process, if it has one of its own."""
        return self.source.process_id if isinstance(self.source, WorkerDrafts) else None

    @property
    def slowdown(self) -> float | None:
        """By what share the worker's packed passes lengthen a verification, where that was measured."""
        return self.source.slowdown if isinstance(self.source, WorkerDrafts) else None

    def close(self) -> None:
        """Ends the source's process, if it has one."""
        self.source.close()

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int,
        temperature: float | None = None,
        seed: int = 0,
        stop: Sequence[int] = (),
    ) -> Generation:
        """Generates to the end; see `stream` for the arguments."""
        stream = self.stream(prompt, max_new_tokens, temperature, seed, stop)
        while True:
            try:
                next(stream)
            except StopIteration as end:
                return end.value

    def stream(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int,
        temperature: float | None = None,
        seed: int = 0,
        stop: Sequence[int] = (),
    ) -> Generator[list[int], None, Generation]:
        """Yields token ids as rounds emit them; the generator's return value is the `Generation`.

        Args:
            prompt: A user message (the chat template is applied) or token ids as they are.
            max_new_tokens: Output length limit, at least 1.
            temperature: Overrides the recipe's; 0 is greedy.
            seed: Of the verifier's random numbers; the drafter's generator has one of its own derived from it.
            stop: Token ids that end the output, besides the target's own.

        Raises:
            WorkbenchError: the prompt is empty, or prompt and output do not fit the model's context.
        """
        start_s = time.monotonic()
        prompt_ids = self.target.encode_prompt(prompt) if isinstance(prompt, str) else list(prompt)
        self._check_lengths(prompt_ids, max_new_tokens)
        settings = self._settings(temperature)
        stop_ids = self.target.stop_ids | frozenset(stop)
        sampled_drafts = settings if settings.temperature and self.options.acceptance == "rejection" else None
        randomness = SeededRandomness(seed)
        statistics, output = DecodeStatistics(), []
        failures_before = self.source.num_failures
        with ShareOfMachine(self._threads, self._cores):
            self.source.start(prompt_ids, seed + 1_000_003, sampled_drafts)
            cache = self.engine.new_cache()
            logits_LV = self.engine.forward(prompt_ids, cache, 1)
            emitted = accept(logits_LV, [], None, settings, self.options.acceptance, randomness, 0)
            round_start_s = time.monotonic()
            statistics.prefill_s = round_start_s - start_s
            draft, verify_start_s, verify_s = Draft([]), 0.0, None
            while True:
                kept, stopped = cut_emission(emitted, stop_ids, max_new_tokens - len(output))
                output += kept
                now_s = time.monotonic()
                statistics.emit_times_s += [now_s - start_s] * len(kept)
                if verify_s is not None:
                    record = _record(draft, emitted, kept, verify_start_s, verify_s, round_start_s, now_s)
                    statistics.rounds.append(record)
                    round_start_s = now_s
                yield kept
                num_remaining = max_new_tokens - len(output)
                if stopped or num_remaining == 0:
                    break
                draft = self.source.next_draft(emitted, num_remaining, verify_s)
                # The bonus takes the last place, so longer drafts could not be emitted.
                draft.token_ids = draft.token_ids[: num_remaining - 1]
                verify_start_s = time.monotonic()
                logits_LV = self.engine.forward([emitted[-1], *draft.token_ids], cache, 1 + len(draft.token_ids))
                self.source.overlap()
                emitted = accept(
                    logits_LV,
                    draft.token_ids,
                    draft.probs_LV,
                    settings,
                    self.options.acceptance,
                    randomness,
                    len(output),
                )
                assert emitted, "a verification emits at least the bonus token"
                verify_s = time.monotonic() - verify_start_s
                if self.observer is not None:
                    self.observer(draft, emitted)
                cache.truncate_to(cache.length - len(draft.token_ids) + len(emitted) - 1)
                # Every committed token but the last is cached: nothing was lost or doubled.
                assert cache.length == len(prompt_ids) + len(output) + len(emitted) - 1
        statistics.decode_s = statistics.emit_times_s[-1] - statistics.prefill_s
        statistics.num_failures = self.source.num_failures - failures_before
        text = self.target.tokenizer.decode(output, skip_special_tokens=True)
        return Generation(output, text, "stop" if stopped else "length", statistics)

    def _settings(self, temperature: float | None) -> SamplingSettings:
        options = self.options
        chosen = options.temperature if temperature is None else temperature
        if chosen < 0:
            raise WorkbenchError(f"temperature is {chosen}: use 0 for greedy decoding or a positive value")
        return SamplingSettings(temperature=chosen, top_p=options.top_p, top_k=options.top_k)

    def _check_lengths(self, prompt_ids: Sequence[int], max_new_tokens: int) -> None:
        if not prompt_ids:
            raise WorkbenchError("the prompt is empty: give at least one token")
        if max_new_tokens < 1:
            raise WorkbenchError(f"max_new_tokens is {max_new_tokens}: use at least 1")
        context = context_length(self.target)
        if len(prompt_ids) + max_new_tokens > context:
            raise WorkbenchError(
                f"a prompt of {len(prompt_ids)} tokens and {max_new_tokens} new ones exceed the target's context of "
                f"{context}: shorten the prompt or lower max_new_tokens"
            )


def _record(
    draft: Draft,
    emitted: Sequence[int],
    kept: Sequence[int],
    verify_start_s: float,
    verify_s: float,
    round_start_s: float,
    now_s: float,
) -> Round:
    spans = [("target", "verify", verify_start_s, verify_start_s + verify_s)]
    spans += [("drafter", name, start, stop) for name, start, stop in draft.spans]
    seconds = {name: stop - start for name, start, stop in draft.spans}
    return Round(
        num_accepted=min(num_agreed(draft.token_ids, emitted), len(kept)),
        num_emitted=len(kept),
        draft_length=len(draft.token_ids),
        outcome=draft.outcome,
        num_hypotheses=draft.num_hypotheses,
        verify_s=verify_s,
        draft_s=seconds.get("draft", 0.0),
        packed_s=seconds.get("packed", 0.0),
        round_s=now_s - round_start_s,
        spans=spans,
    )


def num_agreed(draft: Sequence[int], emitted: Sequence[int]) -> int:
    """Leading draft tokens that were emitted."""
    pairs = zip(draft, emitted, strict=False)
    return next((i for i, (drafted, given) in enumerate(pairs) if drafted != given), min(len(draft), len(emitted)))


class ShareOfMachine:
    """Sets the calling thread's torch threads and cores for a while."""

    def __init__(self, threads: int, cores: frozenset[int] | None) -> None:
        self._threads, self._cores = threads, cores

    def __enter__(self) -> None:
        self._old_threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        if self._cores:
            self._old_cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self._cores)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._old_threads)
        if self._cores:
            os.sched_setaffinity(0, self._old_cores)


def context_length(target: Target) -> int:
    """Positions that the target was made for."""
    return int(target.config.max_position_embeddings)


def split_cores(options: DecodeOptions) -> tuple[frozenset[int] | None, frozenset[int] | None, int, int]:
    """Cores and thread counts of target and worker from the cores at hand: (target's, worker's, threads, threads).

    Without a setting each gets half; with more threads asked for than there are cores, nothing is pinned.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    half = max(1, len(cores) // 2)
    target_threads = options.target_threads or half
    drafter_threads = options.drafter_threads or max(1, len(cores) - target_threads)
    if target_threads + drafter_threads > len(cores) or not hasattr(os, "sched_setaffinity"):
        return None, None, target_threads, drafter_threads
    stop = target_threads + drafter_threads
    return frozenset(cores[:target_threads]), frozenset(cores[target_threads:stop]), target_threads, drafter_threads


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
    if method == "autoregressive":
        return Decoder(target, engine, NoDrafts(), options, target_threads, target_cores)
    if drafter_folder is None:
        raise WorkbenchError(f"{method} decoding needs a drafter")
    drafter_folder = Path(drafter_folder)
    if is_dflash(drafter_folder):
        if method != "synchronous":
            raise WorkbenchError(f"{drafter_folder} reads what the target has verified: it cannot draft meanwhile")
        drafts = build_dflash_drafts(target, drafter_folder, options, max_rows)
        return Decoder(target, drafts.engine, drafts, options, target_threads + drafter_threads, None)
    spec = read_spec(drafter_folder)
    check_pair(spec, target)
    if options.draft_length > spec.block_size:
        raise WorkbenchError(
            f"decode.draft_length is {options.draft_length}, but this drafter's blocks hold {spec.block_size} tokens"
        )
    draft_length, max_blocks = options.draft_length, options.max_hypotheses
    # The drafter's passes run past the output: the draft under verification and the blocks behind it.
    drafter_rows = max_rows + draft_length + (max_blocks + 1) * spec.block_size
    whole_machine = target_threads + drafter_threads
    overlapped = method == "asynchronous" and options.executor == "worker"
    measure_verify_s = functools.partial(measure_pass_s, engine, draft_length + 1, draft_length + 1)
    with ShareOfMachine(target_threads if overlapped else whole_machine, target_cores if overlapped else None):
        verify_s = costs.verify_s if costs else measure_verify_s()
    if overlapped:
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
            delay_s=drafter_delay_s,
        )
        worker = WorkerDrafts(settings)
        if costs is None and max_blocks:
            with ShareOfMachine(target_threads, target_cores):
                worker.measure_slowdown(measure_verify_s)
        return Decoder(target, engine, worker, options, target_threads, target_cores)
    block_drafter = _build_block_drafter(target, drafter_folder, options, drafter_rows, verify_s, costs, whole_machine)
    source: Any = SynchronousDrafts(block_drafter)
    if method == "asynchronous":
        stream = torch.cuda.Stream() if options.executor == "stream" else None
        source = InlineDrafts(block_drafter, stream)
    return Decoder(target, engine, source, options, whole_machine, None)


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
            costs = measure_drafter_costs(engine, drafter.spec, options.draft_length, options.max_hypotheses, verify_s)
    return BlockDrafter(
        engine, drafter.spec, options.draft_length, options.max_hypotheses, costs, calibration, target.stop_ids
    )
