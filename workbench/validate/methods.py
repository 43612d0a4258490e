"""Which decoders a validation compares, and what their rows are called.

    autoregressive                 plain decoding, the target on its share of the machine: the baseline of `speedup`
    autoregressive-whole-machine   plain decoding, the target on the drafter's cores as well
    synchronous[-NAME]             draft, then verify, both on the whole machine
    asynchronous[-NAME]            draft while verifying, each on its share
    dflash                         synchronous, with a drafter that reads the target's hidden states
    transformers                   the library's own plain generation: another engine than all rows above
    transformers-assisted          its assisted generation, the candidate as a plain autoregressive assistant
    transformers-lookup            its prompt lookup, without any drafter

The first drafter is the candidate and its rows carry no name; further ones (`unpruned`) are its yardsticks.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from workbench.decode import build_decoder
from workbench.decode.cores import split_cores
from workbench.drafter.dflash import is_dflash
from workbench.recipe import DecodeOptions
from workbench.targets import Target
from workbench.validate.stock import StockDecoder, StockKind

BASELINE = "autoregressive"
"""Row that speedups are relative to."""
WHOLE_MACHINE_BASELINE = "autoregressive-whole-machine"
"""Row of the second baseline, where the drafter has cores of its own."""
STOCK_BASELINE = "transformers"
"""Row that the other rows of that engine are compared with, too."""
CANDIDATE = "asynchronous"
"""Row that a validation is about."""

DFLASH = "dflash"
"""Row of the drafter that reads hidden states."""
STOCK_KINDS: tuple[StockKind, ...] = ("transformers", "transformers-assisted", "transformers-lookup")


@dataclass(frozen=True)
class Method:
    """One row of a report."""

    name: str
    kind: Literal["autoregressive", "synchronous", "asynchronous"] | StockKind
    drafter: str | None
    """Name of its drafter."""
    options: DecodeOptions
    """The recipe's, with the threads of this method."""
    target_threads: int
    """CPU threads that the target works with."""
    on_all_prompts: bool
    """Decodes every prompt at least once; the others decode timed prompts only."""

    @property
    def is_stock(self) -> bool:
        """Whether the loop is that of `transformers`."""
        return self.kind in STOCK_KINDS

    @property
    def engine(self) -> str:
        """What runs the forward passes; speeds of different engines differ by more than the method."""
        return "transformers" if self.is_stock else self.options.engine


def select_methods(
    options: DecodeOptions, drafters: Mapping[str, Path], device: torch.device, chosen: Sequence[str]
) -> list[Method]:
    """The chosen methods for the named drafters, the candidate first, and plain decoding before all.

    Args:
        options: The recipe's.
        drafters: Folders by name.
        device: Of the target.
        chosen: Names out of `validate.methods`.
    """
    _, _, target_threads, drafter_threads = split_cores(options)
    splits_cores = device.type == "cpu" and options.executor == "worker"
    all_threads = target_threads + drafter_threads
    methods = [Method(BASELINE, "autoregressive", None, options, target_threads, True)]
    if splits_cores:
        whole = dataclasses.replace(options, target_threads=all_threads)
        methods.append(Method(WHOLE_MACHINE_BASELINE, "autoregressive", None, whole, all_threads, False))
    standalone = [name for name, folder in drafters.items() if not is_dflash(folder)]
    for index, name in enumerate(standalone):
        suffix = f"-{name}" if index else ""
        if "synchronous" in chosen:
            methods.append(Method(f"synchronous{suffix}", "synchronous", name, options, all_threads, False))
        if "asynchronous" in chosen:
            threads = target_threads if splits_cores else all_threads
            methods.append(Method(f"{CANDIDATE}{suffix}", "asynchronous", name, options, threads, index == 0))
    for index, name in enumerate([name for name in drafters if name not in standalone]):
        if "dflash" in chosen:
            row = f"{DFLASH}-{name}" if index else DFLASH
            # No other engine keeps the hidden states that it reads; the result says so where the others use another.
            eager = dataclasses.replace(options, engine="eager")
            methods.append(Method(row, "synchronous", name, eager, all_threads, False))
    for kind in STOCK_KINDS:
        drafter = next(iter(standalone), None) if kind == "transformers-assisted" else None
        if kind in chosen and (drafter or kind != "transformers-assisted"):
            methods.append(Method(kind, kind, drafter, options, all_threads, False))
    return methods


@contextmanager
def open_decoders(methods: Sequence[Method], target: Target, drafters: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Opens the decoders of all methods side by side and closes them together; yields them by row name."""
    with ExitStack() as stack:
        yield {method.name: stack.enter_context(_open(method, target, drafters)) for method in methods}


def _open(method: Method, target: Target, drafters: dict[str, Path]) -> Any:
    folder = drafters[method.drafter] if method.drafter else None
    if method.kind in ("autoregressive", "synchronous", "asynchronous"):
        return build_decoder(method.kind, target, folder, method.options)
    return StockDecoder(target, method.kind, folder, method.options, method.target_threads)
