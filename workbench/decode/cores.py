"""Which cores and how many threads target and drafter work with."""

import os
from contextlib import AbstractContextManager

import torch

from workbench.recipe import DecodeOptions


class ShareOfMachine(AbstractContextManager[None]):
    """Sets the calling thread's torch threads and cores for a while.

    Args:
        threads: Of torch.
        cores: To stay on; None: wherever the system puts it.
    """

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


def whole_machine(options: DecodeOptions) -> ShareOfMachine:
    """Cores and threads of target and worker together, for a pass that the other one waits for.

    Like `split_cores`, from the cores at hand: to be called outside any smaller share.
    """
    target_cores, drafter_cores, target_threads, drafter_threads = split_cores(options)
    all_cores = target_cores | drafter_cores if target_cores and drafter_cores else None
    return ShareOfMachine(target_threads + drafter_threads, all_cores)
