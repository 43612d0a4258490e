"""The timing protocol, and the only module that reads a clock for a report.

1.  Batch 1. One process, in which all methods are open at the same time: same weights, same engine, same prompts.
2.  Warm-up: every method decodes some prompts before the first measurement, so that allocations, compilation, graph
    capture and worker start-up are over.
3.  Interleaving: for every prompt all methods take turns, in an order that is drawn anew for each prompt and
    repetition. A machine that slows down, heats up or is shared for a while slows all methods alike.
4.  Repetitions: timed prompts are decoded several times; a prompt's speed is the median over its repetitions. The
    other prompts are decoded once, by the methods that must prove losslessness on all of them, and enter no speed.
5.  Clock: `time.perf_counter` on the reader's side of the decoder's stream (or in the streamer that `transformers`
    hands its tokens to), from before the prompt is handed over.
    What is timed is the arrival of tokens, not what the decoder says about itself. Tokens are on the host when they
    arrive; on a GPU the device is synchronised before the clock starts and when the stream has ended.
6.  What is counted: *time to first token* until the first arrival (prefill and everything before); *decode-only*
    speed from the first arrival to the last, without the tokens of the first; *end-to-end* speed over everything.
    Nothing else is left out: drafting, the drafter's prefill and hand-overs between processes are on the clock.
7.  Load: the kernel's counters say how many cores others used before the first measurement and during each one. A
    busy machine is reported with a warning; measurements are kept.

`docs/validation.md` says how measurements become the numbers of a report.
"""

import gc
import itertools
import random
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from workbench.validate.machine import cores_used_by_others, read_cpu_ticks

Ready = TypeVar("Ready")

IDLE_SAMPLE_S = 1.0
"""How long the machine is watched before the first measurement."""


class Stream(Protocol):
    """What is timed: anything that yields lists of token ids as they appear and returns a generation."""

    def stream(
        self, prompt: Sequence[int], max_new_tokens: int, temperature: float | None = None, seed: int = 0
    ) -> Generator[list[int], None, Any]:
        """Decodes one prompt."""
        ...


@runtime_checkable
class Pusher(Protocol):
    """What is timed, too: a decoder with a loop of its own, which hands lists of token ids over as they appear."""

    def push(
        self,
        receive: Callable[[list[int]], None],
        prompt: Sequence[int],
        max_new_tokens: int,
        temperature: float | None = None,
        seed: int = 0,
    ) -> Any:
        """Decodes one prompt; returns the generation."""
        ...


@dataclass(frozen=True)
class Job:
    """One measurement to make; its fields identify it across interruptions."""

    suite: str
    prompt: int
    """Index within the suite."""
    method: str
    repetition: int


@dataclass(frozen=True)
class Measurement:
    """One timed generation."""

    job: Job
    token_ids: list[int]
    stop_reason: str
    arrival_times_s: list[float]
    """Seconds from the start to the arrival of each token, one per token, never falling."""
    total_s: float
    """Until the stream had ended."""
    rounds: list[dict[str, Any]]
    """The decoder's own account of every round, without spans."""
    num_failures: int
    """Rounds for which the drafter failed to answer."""
    others_cores: float | None
    """Cores that others used meanwhile; None where that is unknown."""

    @property
    def time_to_first_token_s(self) -> float:
        """Until the first arrival."""
        return self.arrival_times_s[0]

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first arrival over the time since it; None where all arrived at once."""
        first, last = self.arrival_times_s[0], self.arrival_times_s[-1]
        num_later = sum(1 for arrival in self.arrival_times_s if arrival > first)
        return num_later / (last - first) if num_later else None

    @property
    def end_to_end_tokens_per_second(self) -> float:
        """All tokens over all time."""
        return len(self.token_ids) / self.total_s

    @property
    def inter_token_latencies_s(self) -> list[float]:
        """Waiting time of a reader for each token after the first; 0 for tokens that come in one burst."""
        times = self.arrival_times_s
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with times rounded to a microsecond (the clock's jitter is larger)."""
        values = asdict(self)
        values["arrival_times_s"] = [round(arrival, 6) for arrival in self.arrival_times_s]
        values["rounds"] = [{key: _rounded(value) for key, value in entry.items()} for entry in self.rounds]
        return values

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Measurement":
        """Reads what `as_dict` gave."""
        return Measurement(**{**values, "job": Job(**values["job"])})


def interleaved_jobs(
    suites: dict[str, int],
    timed_prompts: int,
    repetitions: int,
    methods: Sequence[str],
    methods_on_all_prompts: Sequence[str],
    seed: int,
) -> list[Job]:
    """All measurements in the order in which they are made.

    Args:
        suites: Number of prompts of each suite.
        timed_prompts: Prompts per suite, the first ones, that every method decodes `repetitions` times.
        repetitions: See above.
        methods: Names of all methods.
        methods_on_all_prompts: Those that also decode the other prompts, once.
        seed: Of the order of methods.
    """
    rng = random.Random(f"interleaved {seed}")
    jobs = []
    for repetition in range(repetitions):
        for suite, num_prompts in suites.items():
            for prompt in range(num_prompts):
                if prompt < timed_prompts:
                    turn = list(methods)
                else:
                    turn = list(methods_on_all_prompts) if repetition == 0 else []
                rng.shuffle(turn)
                jobs += [Job(suite, prompt, method, repetition) for method in turn]
    return jobs


def measure_generation(
    decoder: Stream | Pusher,
    job: Job,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    device: torch.device | None = None,
) -> Measurement:
    """Decodes one prompt under the clock."""
    arrivals: list[float] = []
    streamed: list[int] = []
    before = read_cpu_ticks()
    with _undisturbed():
        _synchronize(device)
        start = time.perf_counter()

        def receive(tokens: list[int]) -> None:
            arrivals.extend([time.perf_counter() - start] * len(tokens))
            streamed.extend(tokens)

        if isinstance(decoder, Pusher):
            generation = decoder.push(receive, prompt_ids, max_new_tokens, temperature=temperature, seed=seed)
        else:
            stream = decoder.stream(prompt_ids, max_new_tokens, temperature=temperature, seed=seed)
            generation = _drain(stream, receive)
        _synchronize(device)
        total_s = time.perf_counter() - start
    after = read_cpu_ticks()
    assert streamed == list(generation.token_ids), "a decoder streamed other tokens than it returned"
    return Measurement(
        job=job,
        token_ids=streamed,
        stop_reason=generation.stop_reason,
        arrival_times_s=arrivals,
        total_s=total_s,
        rounds=[_without_spans(asdict(entry)) for entry in generation.statistics.rounds],
        num_failures=generation.statistics.num_failures,
        others_cores=cores_used_by_others(before, after) if before and after else None,
    )


def measure_preparation(prepare: Callable[[], Ready]) -> tuple[Ready, float]:
    """What `prepare` returns, and the seconds that it took."""
    start = time.perf_counter()
    ready = prepare()
    return ready, time.perf_counter() - start


def measure_idle_load() -> float | None:
    """Cores that others use while this process sleeps; None where that is unknown."""
    before = read_cpu_ticks()
    time.sleep(IDLE_SAMPLE_S)
    after = read_cpu_ticks()
    return cores_used_by_others(before, after) if before and after else None


def read_date() -> str:
    """The present date and time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _drain(stream: Generator[list[int], None, Any], receive: Callable[[list[int]], None]) -> Any:
    """Reads a stream to its end; returns the generation."""
    while True:
        try:
            tokens = next(stream)
        except StopIteration as end:
            return end.value
        receive(tokens)


@contextmanager
def _undisturbed() -> Generator[None, None, None]:
    """Keeps Python's garbage collector off the clock."""
    gc.collect(1)  # young objects only: a full collection takes longer than a short generation
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def _without_spans(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "spans"}


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
