"""The processes that score sets and work on studies: this one, or several of their own.

A worker that dies takes its pool down; its trials are queued again, a new pool takes over, and nothing that was
scored is scored twice.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_end
from pathlib import Path
from typing import Any

import optuna
import torch

from workbench.console import console
from workbench.corpus.responses import load_corpus
from workbench.decode.cores import ShareOfMachine
from workbench.errors import WorkbenchError
from workbench.processes import forking_context
from workbench.prune.encoding import LayerSet
from workbench.prune.scoring import BlockScorer
from workbench.prune.storage import Claim, open_storage, requeue_abandoned
from workbench.prune.study import StudyPlan, open_study, work_on
from workbench.validate.statistics import Estimate

MAX_POOLS = 4
"""Pools that may break in a row before the search gives up."""


@dataclass(frozen=True, kw_only=True)
class ScorerSettings:
    """Everything a process needs to build its scorer."""

    drafter_folder: Path
    corpus_folder: Path
    samples: tuple[int, int]
    """Held-out responses from the first to before the second number give the blocks."""
    seed: int
    draft_length: int
    cache_folder: Path
    dtype: str
    device: str

    def build(self) -> BlockScorer:
        """Loads the drafter and draws the blocks."""
        samples = load_corpus(self.corpus_folder).held_out.select(range(*self.samples))
        return BlockScorer(
            self.drafter_folder, samples, self.seed, self.draft_length, self.cache_folder, self.dtype, self.device
        )


@dataclass(frozen=True)
class Others:
    """What the other processes are doing."""

    futures: list[Future]

    def check(self) -> None:
        """Raises what one of them ended with: its own error, or BrokenProcessPool where it died."""
        for future in self.futures:
            if future.done() and not future.cancelled():
                future.result()

    def finish(self) -> None:
        """Waits for all of them; raises as `check` does."""
        wait([future for future in self.futures if not future.cancelled()])
        self.check()


class Workforce:
    """Scores sets and finishes studies with a number of processes, of which this one is the first.

    Use as a context manager: the others start at once and this one does not wait for them.

    Args:
        settings: Of every process's scorer.
        num_workers: 1: this process alone.
    """

    def __init__(self, settings: ScorerSettings, num_workers: int) -> None:
        self.settings = settings
        self.num_workers = num_workers
        self._threads = max(1, (os.cpu_count() or 1) // num_workers)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workforce":
        with ExitStack() as stack:
            stack.callback(self._end_pool)
            if self.num_workers > 1:
                self._running_pool().submit(os.getpid)  # they start with the first call
                stack.enter_context(ShareOfMachine(self._threads, None))
            self.scorer = self.settings.build()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def score_ahead(self, sets: Sequence[LayerSet], rung: int) -> None:
        """Scores several sets at the same time, so that reading their scores later takes no time."""
        if self.num_workers == 1:
            return
        futures: dict[LayerSet, Future] = {}

        def submit(pool: ProcessPoolExecutor) -> list[Future]:
            futures.update({dropped: pool.submit(_score, dropped, rung) for dropped in sets})
            return list(futures.values())

        def take_from_the_end(others: Others) -> None:
            for dropped in reversed(sets):
                if futures[dropped].cancel():
                    self.scorer.retained(dropped, rung)
                others.check()

        self._share(submit, take_from_the_end)

    def finish_study(self, plan: StudyPlan, on_progress: Callable[[optuna.Study], Any]) -> optuna.Study:
        """Works on a study until it is finished; trials that a killed worker left are queued again first."""
        storage = open_storage(plan.storage)
        study = open_study(plan, storage)

        def work(others: Others) -> None:
            def on_trial(study: optuna.Study) -> None:
                others.check()
                on_progress(study)

            with Claim(plan.claims) as claim:
                work_on(plan, self.scorer, claim, on_trial=on_trial)

        def submit(pool: ProcessPoolExecutor) -> list[Future]:
            requeue_abandoned(study, plan.claims)
            return [pool.submit(_work, plan, worker) for worker in range(1, self.num_workers)]

        if self.num_workers == 1:
            requeue_abandoned(study, plan.claims)
            work(Others([]))
        else:
            self._share(submit, work)
        return study

    def _share(self, submit: Callable[[ProcessPoolExecutor], list[Future]], own_work: Callable[[Others], None]) -> None:
        """Hands work to the other processes and does this one's part; again with others where one of them died."""
        for _ in range(MAX_POOLS):
            try:
                others = Others(submit(self._running_pool()))
                own_work(others)
                others.finish()
                return
            except BrokenProcessPool:
                console.print("[yellow]a worker ended unexpectedly; its trial is queued again[/yellow]")
                self._end_pool()
        raise WorkbenchError(f"workers of the search died {MAX_POOLS} times: is there enough memory for them?")

    def _running_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.num_workers - 1,
                mp_context=forking_context(),
                initializer=_begin_worker,
                initargs=(self.settings, self._threads),
            )
        return self._pool

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


_own_scorer: BlockScorer | None = None
"""The scorer of a worker process, set once when it begins."""


def _begin_worker(settings: ScorerSettings, threads: int) -> None:
    global _own_scorer
    # The terminal interrupts all processes at once; the search says so, its workers just end.
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _own_scorer = settings.build()


def _end_with_parent() -> None:
    """A search that was killed must not leave workers behind that go on without it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(1)


def _score(dropped: LayerSet, rung: int) -> Estimate:
    assert _own_scorer is not None
    return _own_scorer.retained(dropped, rung)


def _work(plan: StudyPlan, worker: int) -> None:
    assert _own_scorer is not None
    with Claim(plan.claims) as claim:
        work_on(plan, _own_scorer, claim, worker)
