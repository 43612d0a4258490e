"""The drafter in a process of its own, with its own cores or GPU.

Token ids and statistics cross the border, nothing else. The worker answers a commit with a draft and then, without
being asked, drafts ahead while the target verifies. A worker that dies, hangs or falls behind never stops or changes
the output: the decoder goes on without drafts and counts the rounds.
"""

import contextlib
import logging
import multiprocessing.connection
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from workbench.decode.calibration import load_calibration
from workbench.decode.cores import ShareOfMachine
from workbench.decode.costs import measure_drafter_costs, packed_pass
from workbench.decode.drafting import BlockDrafter, Draft
from workbench.decode.hypotheses import RoundCosts
from workbench.decode.sampling import SamplingSettings
from workbench.decode.static_engine import build_engine
from workbench.drafter.model import load_drafter
from workbench.errors import WorkbenchError
from workbench.processes import forking_context

LATE_S = 2.0
"""A draft that is this late is not waited for: the round goes on without one."""
HUNG_S = 20.0
"""A worker that has been silent for this long is ended."""
START_S = 300.0
"""Loading the drafter may take this long, and so may compiling a pass."""
_REHEARSALS = 3
"""Comparisons with and without a packed pass; a machine's speed changes from one second to the next."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Everything a worker needs to build its drafter."""

    drafter_folder: Path
    dtype: str
    device: str
    engine: str
    max_rows: int
    draft_length: int
    max_blocks: int
    stop_ids: frozenset[int]
    verify_s: float
    costs: RoundCosts | None
    """None: measured in the worker."""
    cores: frozenset[int] | None
    """CPU cores of packed passes, which run beside the target; None: wherever the system puts them."""
    threads: int
    share_at_a_miss: ShareOfMachine
    """Of draft passes, which the target waits for."""
    delay_s: float
    """Artificial delay of every pass, for the delay-injection measurement."""


class WorkerDrafts:
    """Draft source that talks to a worker process.

    Args:
        settings: Given to the worker.

    Raises:
        WorkbenchError: the worker could not load its drafter.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.num_failures = 0
        self._sequence = 0
        self._silent_since_s: float | None = None
        # The first pass of each shape is compiled, which takes longer than any sound pass.
        self._hung_s = START_S if settings.engine == "compiled" else HUNG_S
        context = forking_context()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, settings), daemon=True, name="drafter")
        self._process.start()
        theirs.close()
        try:
            if not self._connection.poll(START_S):
                raise EOFError
            answer = self._connection.recv()
        except EOFError:
            self.close()
            raise WorkbenchError(f"the drafter process for {settings.drafter_folder} ended while loading") from None
        except KeyboardInterrupt:
            self.close()
            raise
        if isinstance(answer, str):
            self.close()
            raise WorkbenchError(answer)
        self.slowdown: float | None = None
        """By what share packed passes lengthen a verification; None before it was measured."""

    def measure_slowdown(self, measure_alone_s: Callable[[], float], measure_beside_s: Callable[[], float]) -> None:
        """Measures the slowdown, and tells the worker, which weighs it.

        Args:
            measure_alone_s: Times a verification with all cores.
            measure_beside_s: Times one with the target's share of them; called while the worker runs packed passes.
        """
        ratios = []
        for _ in range(_REHEARSALS):
            alone_s = measure_alone_s()
            self._send(("rehearse",))
            ratios.append(measure_beside_s() / alone_s)
            self.slowdown = max(0.0, statistics.median(ratios) - 1)
            self._send(("rehearsed", self.slowdown))

    @property
    def process_id(self) -> int | None:
        """Of the worker; None once it was ended."""
        return self._process.pid if self._process.is_alive() else None

    def start(self, prompt_ids: Sequence[int], seed: int, sampling: SamplingSettings | None) -> None:
        """Begins a sequence; the worker caches the prompt while the target does."""
        self._send(("start", list(prompt_ids), seed, sampling))

    def next_draft(self, emitted: Sequence[int], num_remaining: int, verify_s: float | None) -> Draft:
        """Sends what was emitted, waits for the draft that follows it."""
        self._sequence += 1
        if not self._send(("commit", self._sequence, list(emitted), num_remaining, verify_s)):
            return self._without_draft()
        sent_s = time.monotonic()
        silent_since_s = sent_s if self._silent_since_s is None else self._silent_since_s
        with contextlib.suppress(EOFError, OSError):
            while self._connection.poll(max(0.0, sent_s + LATE_S - time.monotonic())):
                sequence, draft = self._connection.recv()
                silent_since_s = sent_s
                if sequence == self._sequence:
                    self._silent_since_s = None
                    return draft
        self._silent_since_s = silent_since_s
        if time.monotonic() - silent_since_s > self._hung_s:
            logger.warning("the drafter process does not answer; decoding goes on without drafts")
            self.close()
        return self._without_draft()

    def _send(self, message: tuple) -> bool:
        try:
            self._connection.send(message)
        except (OSError, ValueError):
            return False
        return True

    def _without_draft(self) -> Draft:
        self.num_failures += 1
        return Draft([], outcome="failed")

    def overlap(self) -> None:
        """The worker drafts ahead by itself."""

    def close(self) -> None:
        """Ends the worker."""
        self._connection.close()
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(connection: multiprocessing.connection.Connection, settings: WorkerSettings) -> None:
    """The worker's life: load, answer, end when the decoder's end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        try:
            drafter = _build_drafter(settings)
        except WorkbenchError as error:
            connection.send(str(error))
            return
        connection.send(None)
        while True:
            match connection.recv():
                case ("start", *arguments):
                    drafter.start(*arguments, ahead=True)
                case ("commit", *arguments):
                    _answer(connection, drafter, settings, *arguments)
                case ("rehearse",):
                    _rehearse(connection, drafter)
                case ("rehearsed", slowdown):
                    drafter.costs = replace(drafter.costs, slowdown=slowdown)


def _answer(
    connection: multiprocessing.connection.Connection,
    drafter: BlockDrafter,
    settings: WorkerSettings,
    sequence: int,
    emitted: list[int],
    num_remaining: int,
    verify_s: float | None,
) -> None:
    """Sends the draft that follows what was emitted, then drafts ahead."""
    drafter.commit(emitted, verify_s)
    if connection.poll():
        return  # The decoder went on without this draft; catch up before drafting again.
    _delay(settings, drafter.needs_pass)
    with settings.share_at_a_miss if drafter.needs_pass else contextlib.nullcontext():
        draft = drafter.draft()
    drafter.choose(num_remaining)
    connection.send((sequence, draft))
    _delay(settings, True)
    drafter.prepare()


def _rehearse(connection: multiprocessing.connection.Connection, drafter: BlockDrafter) -> None:
    """Packed passes, one after the other, until the next message."""
    run_packed = packed_pass(drafter.engine, drafter.spec, drafter.draft_length, drafter.max_blocks)
    while not connection.poll():
        run_packed()


def _delay(settings: WorkerSettings, before_pass: bool) -> None:
    if settings.delay_s and before_pass:
        time.sleep(settings.delay_s)


def _build_drafter(settings: WorkerSettings) -> BlockDrafter:
    if settings.cores:
        os.sched_setaffinity(0, settings.cores)
    torch.set_num_threads(settings.threads)
    drafter = load_drafter(settings.drafter_folder, settings.dtype, settings.device)
    engine = build_engine(settings.engine, drafter.model, settings.max_rows)
    calibration = load_calibration(settings.drafter_folder, settings.draft_length)
    costs = settings.costs or measure_drafter_costs(
        engine,
        drafter.spec,
        settings.draft_length,
        settings.max_blocks,
        settings.verify_s,
        settings.share_at_a_miss,
    )
    return BlockDrafter(
        engine, drafter.spec, settings.draft_length, settings.max_blocks, costs, calibration, settings.stop_ids
    )
