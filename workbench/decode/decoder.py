"""The decoding loop: one for all methods, whose output law is the target's whatever the source drafts."""

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

from workbench.decode.acceptance import accept, cut_emission
from workbench.decode.cores import ShareOfMachine
from workbench.decode.drafting import Draft
from workbench.decode.engine import Engine
from workbench.decode.sampling import SamplingSettings, SeededRandomness
from workbench.decode.sources import DraftSource
from workbench.decode.worker import WorkerDrafts
from workbench.errors import WorkbenchError
from workbench.recipe import DecodeOptions
from workbench.targets import Target


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
        share_alone: Threads and cores of a verification beside which nothing is drafted; None: the same.
    """

    def __init__(
        self,
        target: Target,
        engine: Engine,
        source: DraftSource,
        options: DecodeOptions,
        threads: int,
        cores: frozenset[int] | None,
        share_alone: AbstractContextManager[None] | None = None,
    ) -> None:
        self.target = target
        self.engine = engine
        self.source = source
        self.options = options
        self.observer: Callable[[Draft, list[int]], None] | None = None
        """Called after every verification with the draft and what was emitted for it (calibration)."""
        self._threads = threads
        self._cores = cores
        self._share_alone = share_alone or contextlib.nullcontext()

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
                with contextlib.nullcontext() if draft.num_ahead else self._share_alone:
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


def context_length(target: Target) -> int:
    """Positions that the target was made for."""
    return int(target.config.max_position_embeddings)
