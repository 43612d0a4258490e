"""Where a decoder's drafts come from: nowhere, the same thread, a worker process, or a second CUDA stream.

All sources obey one protocol, so there is one decoding loop, and autoregressive, synchronous and asynchronous
decoding differ by their source alone.
"""

import contextlib
from collections.abc import Sequence
from typing import Protocol

import torch

from workbench.decode.drafting import BlockDrafter, Draft
from workbench.decode.sampling import SamplingSettings


class DraftSource(Protocol):
    """What the decoding loop asks of a source of drafts, in this order every round: `next_draft`, `overlap`."""

    num_failures: int
    """Rounds without a draft because the source died, hung or fell behind."""

    def start(self, prompt_ids: Sequence[int], seed: int, sampling: SamplingSettings | None) -> None:
        """Begins a sequence; called before the target's prefill."""
        ...

    def next_draft(self, emitted: Sequence[int], num_remaining: int, verify_s: float | None) -> Draft:
        """The draft that follows what the last verification emitted, which took `verify_s` (None: the prefill did)."""
        ...

    def overlap(self) -> None:
        """Called when the verification has been issued and its outcome is not known yet."""
        ...

    def close(self) -> None:
        """Frees what the source holds."""
        ...


class NoDrafts:
    """Autoregressive decoding."""

    num_failures = 0

    def start(self, prompt_ids: Sequence[int], seed: int, sampling: SamplingSettings | None) -> None:
        """Nothing to begin."""

    def next_draft(self, emitted: Sequence[int], num_remaining: int, verify_s: float | None) -> Draft:
        """An empty draft."""
        return Draft([])

    def overlap(self) -> None:
        """Nothing overlaps."""

    def close(self) -> None:
        """Nothing to free."""


class SynchronousDrafts(NoDrafts):
    """Drafts between verifications, in the same thread."""

    def __init__(self, drafter: BlockDrafter) -> None:
        self._drafter = drafter

    def start(self, prompt_ids: Sequence[int], seed: int, sampling: SamplingSettings | None) -> None:
        """Begins a sequence; the prompt is cached with the first draft."""
        self._drafter.start(prompt_ids, seed, sampling, ahead=False)

    def next_draft(self, emitted: Sequence[int], num_remaining: int, verify_s: float | None) -> Draft:
        """One draft pass."""
        self._drafter.commit(emitted)
        return self._drafter.draft()


class InlineDrafts(NoDrafts):
    """Asynchronous decoding's passes in the same thread: the reference for tests, and the `stream` executor.

    Args:
        drafter: Drafts.
        stream: CUDA stream of the drafter; verification is already enqueued on the current stream when `overlap`
            enqueues the packed pass here, so the two run side by side. None: one after the other.
    """

    def __init__(self, drafter: BlockDrafter, stream: "torch.cuda.Stream | None" = None) -> None:
        self._drafter = drafter
        self._stream = stream
        self._num_remaining = 0

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext()

    def start(self, prompt_ids: Sequence[int], seed: int, sampling: SamplingSettings | None) -> None:
        """Caches the prompt and drafts behind it."""
        with self._on_stream():
            self._drafter.start(prompt_ids, seed, sampling, ahead=True)

    def next_draft(self, emitted: Sequence[int], num_remaining: int, verify_s: float | None) -> Draft:
        """The draft of the hypothesis that came true, or a draft pass."""
        self._num_remaining = num_remaining
        with self._on_stream():
            self._drafter.commit(emitted, verify_s)
            return self._drafter.draft()

    def overlap(self) -> None:
        """The packed pass."""
        with self._on_stream():
            self._drafter.choose(self._num_remaining)
            self._drafter.prepare()
