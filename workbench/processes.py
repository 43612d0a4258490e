"""How the workbench's own processes start."""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

_ENTRY_MODULES = ["workbench.decode.worker", "workbench.prune.workforce"]
_SPIN_VARIABLE = "GOMP_SPINCOUNT"
_SPIN_COUNT = 10_000
"""Turns that an idle OpenMP thread waits for work before it sleeps, about half a millisecond: longer than the gaps
within a pass. By default it is thirty times as long, and the threads of a draft pass would take cores from the
verification that follows."""


def forking_context() -> ForkServerContext:
    """A server that has imported the libraries once forks the processes: they start in a fifth of the time.

    The first process decides what the server has imported, so that is the same for all of them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_ENTRY_MODULES)
    given = os.environ.get(_SPIN_VARIABLE)
    os.environ.setdefault(_SPIN_VARIABLE, str(_SPIN_COUNT))  # read when the library is loaded: not by this process
    try:
        forkserver.ensure_running()
    finally:
        if given is None:
            del os.environ[_SPIN_VARIABLE]
    return context
