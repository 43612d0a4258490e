"""Which decoders a validation compares, and what their rows are called.

    autoregressive                 plain decoding, the target on its share of the machine: the baseline of `speedup`
    autoregressive-whole-machine   plain decoding, the target on the drafter's cores as well
    synchronous[-NAME]             draft, then verify, both on the whole machine
    asynchronous[-NAME]            draft while verifying, each on its share

The first drafter is the candidate and its rows carry no name; further ones (`unpruned`) are its yardsticks.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from workbench.decode import build_decoder
from workbench.decode.decoder import split_cores
from workbench.recipe import DecodeOptions
from workbench.targets import Target

BASELINE = "autoregressive"
"""Row that speedups are relative to."""
WHOLE_MACHINE_BASELINE = "autoregressive-whole-machine"
"""Row of the second baseline, where the drafter has cores of its own."""
CANDIDATE = "asynchronous"
"""Row that a validation is about."""


@dataclass(frozen=True)
class Method:
    """One row of a report."""

    name: str
    kind: Literal["autoregressive", "synchronous", "asynchronous"]
    drafter: str | None
    """Name of its drafter."""
    options: DecodeOptions
    """The recipe's, with the threads of this method."""
    target_threads: int
    """CPU threads that the target works with."""
    on_all_prompts: bool
    """Decodes every prompt at least once; the others decode timed prompts only."""


def select_methods(options: DecodeOptions, drafters: Sequence[str], device: torch.device) -> list[Method]:
    """All methods for the named drafters, the candidate first."""
    _, _, target_threads, drafter_threads = split_cores(options)
    splits_cores = device.type == "cpu" and options.executor == "worker"
    all_threads = target_threads + drafter_threads
    methods = [Method(BASELINE, "autoregressive", None, options, target_threads, True)]
    if splits_cores:
        whole = dataclasses.replace(options, target_threads=all_threads)
        methods.append(Method(WHOLE_MACHINE_BASELINE, "autoregressive", None, whole, all_threads, False))
    for index, name in enumerate(drafters):
        suffix = f"-{name}" if index else ""
        methods.append(Method(f"synchronous{suffix}", "synchronous", name, options, all_threads, False))
        threads = target_threads if splits_cores else all_threads
        methods.append(Method(f"{CANDIDATE}{suffix}", "asynchronous", name, options, threads, index == 0))
    return methods


@contextmanager
def open_decoders(methods: Sequence[Method], target: Target, drafters: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Opens the decoders of all methods side by side and closes them together; yields them by row name."""
    with ExitStack() as stack:
        decoders: dict[str, Any] = {}
        for method in methods:
            folder = drafters[method.drafter] if method.drafter else None
            decoders[method.name] = stack.enter_context(build_decoder(method.kind, target, folder, method.options))
        yield decoders
