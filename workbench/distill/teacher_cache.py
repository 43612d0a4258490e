"""The target's distributions on disk: the top-k log-probabilities of every response position, in whole shards.

What the cache was written from is in `plan.json`; a cache of another corpus, target or size is never read, but written
anew. A shard holds consecutive samples, the training responses first and then the held-out ones. Its rows are those
that predict a response's tokens, one after another:

    ids (R, K)       tokens, the most probable first; 2 bytes where the vocabulary allows it, else 4
    logprobs (R, K)  in half precision: right to 1 part in 1,000 where a token matters
    rest (R)         log of the mass of all other tokens together, 4 bytes

Dimensions: B sequence, R row, K most probable tokens of a row, V vocabulary.
"""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from workbench.console import console, progress
from workbench.corpus.responses import Corpus
from workbench.distill.losses import CHUNK_LOGITS, FullRows, TopRows
from workbench.distill.teacher import OnlineTeacher
from workbench.drafter.blocks import BlockBatch, stack_sequences
from workbench.errors import WorkbenchError
from workbench.files import read_json, whole_file, write_json

PLAN_FILE = "plan.json"
SHARD_BYTES = 256 * 2**20
"""A kill loses at most one shard."""
LEAST_LOGPROB = -80.0
"""Stands for the log of a mass of zero."""


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """What decides a cache's content."""

    corpus: str
    """Fingerprint of the corpus."""
    target: str
    """Fingerprint of the target."""
    num_samples: int
    num_rows: int
    vocab_size: int
    """Tokens over which the target's distribution is taken."""
    top_k: int
    in_bfloat16: bool
    """The target computed in bfloat16."""

    @property
    def id_dtype(self) -> Any:
        """Smallest integers that hold every token."""
        return numpy.uint16 if self.vocab_size <= 2**16 else numpy.int32

    @property
    def row_bytes(self) -> int:
        """Of one position."""
        return self.top_k * (numpy.dtype(self.id_dtype).itemsize + 2) + 4

    @property
    def num_bytes(self) -> int:
        """Of all shards together, headers aside."""
        return self.num_rows * self.row_bytes


class TeacherCache:
    """A cache in a folder.

    Args:
        folder: Where it is, or will be written.
        corpus: Its responses, training and held-out ones.
        plan: What it holds.
        shard_bytes: Size at which a shard is full.
    """

    def __init__(self, folder: Path, corpus: Corpus, plan: CachePlan, shard_bytes: int = SHARD_BYTES):
        self.folder = folder
        self.plan = plan
        self.corpus = corpus
        self.num_rows_of_samples = response_lengths(corpus)
        self.shards = cut_shards(self.num_rows_of_samples, shard_bytes // plan.row_bytes)
        self._place_of_sample = [
            (number, first) for number, shard in enumerate(self.shards) for first in shard.first_rows
        ]

    def write(self, teacher: OnlineTeacher, batch_size: int) -> None:
        """Writes the shards that are not there yet; says before how large they will be.

        Args:
            teacher: On the device where it computes.
            batch_size: Sequences per pass.

        Raises:
            WorkbenchError: they do not fit on the disk.
        """
        self._forget_other_plan()
        missing = [number for number in range(len(self.shards)) if not self.path(number).is_file()]
        if not missing:
            return
        self._check_room(sum(self.shards[number].num_rows for number in missing))
        write_json(self.folder / PLAN_FILE, dataclasses.asdict(self.plan))
        with progress("teacher cache: rows", self.plan.num_rows) as advance:
            if len(missing) < len(self.shards):
                advance(self.plan.num_rows - sum(self.shards[number].num_rows for number in missing), "written before")
            for number in missing:
                arrays = self._compute(self.shards[number], teacher, batch_size, lambda count: advance(count, ""))
                with whole_file(self.path(number)) as temporary:
                    save_file(arrays, temporary)

    def consult(self, batch: BlockBatch, is_held_out: bool) -> Callable[[Tensor, Tensor], TopRows]:
        """Reads the rows of a batch's responses; gives them by sequence and position."""
        first_sample = len(self.corpus.train) if is_held_out else 0
        device = batch.tokens_BT.device
        parts = [self.read(first_sample + sample) for sample in batch.samples_B.tolist()]
        num_rows_B = torch.tensor([len(part.rest_logprob_R) for part in parts], device=device)
        first_row_B = num_rows_B.cumsum(0) - num_rows_B
        ids_RK = torch.cat([part.ids_RK for part in parts]).to(device)
        logprobs_RK = torch.cat([part.logprobs_RK for part in parts]).to(device).float()
        rest_R = torch.cat([part.rest_logprob_R for part in parts]).to(device)
        # Rounded as they are, they would not add up to 1.
        total_R = torch.logaddexp(logprobs_RK.logsumexp(-1), rest_R)
        logprobs_RK, rest_R = logprobs_RK - total_R[:, None], rest_R - total_R

        def find(sequence_R: Tensor, position_R: Tensor) -> TopRows:
            # The row before a response's first token predicts it.
            row_R = first_row_B[sequence_R] + position_R - (batch.prompt_lengths_B[sequence_R] - 1)
            return TopRows(ids_RK[row_R].long(), logprobs_RK[row_R], rest_R[row_R])

        return find

    def read(self, sample: int) -> TopRows:
        """The rows of one response as they are on disk, in order; held-out samples are counted after the others."""
        number, first = self._place_of_sample[sample]
        stop = first + self.num_rows_of_samples[sample]
        try:
            with safe_open(self.path(number), framework="numpy") as shard:
                ids, logprobs, rest = (shard.get_slice(name)[first:stop] for name in ("ids", "logprobs", "rest"))
        except (OSError, SafetensorError) as error:
            raise WorkbenchError(
                f"the teacher cache's {self.path(number)} cannot be read: {error}; delete it, and it is written again"
            ) from error
        return TopRows(*(torch.from_numpy(array) for array in (ids.astype(numpy.int32), logprobs, rest)))

    def path(self, number: int) -> Path:
        """A shard's file."""
        return self.folder / f"shard-{number:06}.safetensors"

    def _forget_other_plan(self) -> None:
        path = self.folder / PLAN_FILE
        if path.is_file() and (before := read_json(path)) != (now := dataclasses.asdict(self.plan)):
            changed = ", ".join(sorted(key for key in now if before.get(key) != now[key]))
            console.print(f"teacher cache: {changed} changed since it was written, starting over")
            path.unlink()
        if not path.is_file():
            for shard in self.folder.glob("shard-*.safetensors"):
                shard.unlink()

    def _check_room(self, num_missing_rows: int) -> None:
        plan = self.plan
        self.folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(self.folder).free
        missing_bytes = num_missing_rows * plan.row_bytes
        console.print(
            f"teacher cache: {plan.num_rows:,} positions x top {plan.top_k} of {plan.vocab_size:,} tokens = "
            f"{_gib(plan.num_bytes)}, {_gib(missing_bytes)} of it to be written to {self.folder} "
            f"({_gib(free_bytes)} free)"
        )
        if missing_bytes > free_bytes:
            raise WorkbenchError(
                f"the teacher cache needs {_gib(missing_bytes)} in {self.folder}, but the disk has "
                f"{_gib(free_bytes)} free: lower distill.teacher_top_k ({plan.top_k}), or set distill.teacher online"
            )

    @torch.no_grad()
    def _compute(
        self, shard: "Shard", teacher: OnlineTeacher, batch_size: int, advance: Callable[[int], None]
    ) -> dict[str, Any]:
        plan = self.plan
        arrays = {
            "ids": numpy.empty((shard.num_rows, plan.top_k), plan.id_dtype),
            "logprobs": numpy.empty((shard.num_rows, plan.top_k), numpy.float16),
            "rest": numpy.empty(shard.num_rows, numpy.float32),
        }
        samples = [self._sample(shard.start + index) for index in range(len(shard.first_rows))]
        by_length = sorted(range(len(samples)), key=lambda index: sum(map(len, samples[index])))
        for begin in range(0, len(by_length), batch_size):
            chosen = by_length[begin : begin + batch_size]
            batch = _without_blocks([samples[index] for index in chosen])
            find = teacher.consult(batch.to(teacher.model.device))
            for row, index in enumerate(chosen):
                position_R = torch.arange(int(batch.prompt_lengths_B[row]) - 1, int(batch.lengths_B[row]) - 1)
                first = shard.first_rows[index]
                for part in find(torch.full_like(position_R, row), position_R).split(
                    max(1, CHUNK_LOGITS // plan.vocab_size)
                ):
                    top = keep_top(part, plan.top_k, plan.vocab_size)
                    stop = first + len(top.rest_logprob_R)
                    arrays["ids"][first:stop] = top.ids_RK.cpu().numpy()
                    arrays["logprobs"][first:stop] = top.logprobs_RK.cpu().numpy()
                    arrays["rest"][first:stop] = top.rest_logprob_R.cpu().numpy()
                    first = stop
            advance(int((batch.lengths_B - batch.prompt_lengths_B).sum()))
        return arrays

    def _sample(self, number: int) -> tuple[list[int], list[int]]:
        num_train = len(self.corpus.train)
        row = self.corpus.train[number] if number < num_train else self.corpus.held_out[number - num_train]
        return row["prompt_ids"], row["response_ids"]


@dataclass(frozen=True)
class Shard:
    """Consecutive samples, and where each one's rows begin in their file."""

    start: int
    first_rows: list[int]
    num_rows: int


def cut_shards(num_rows_of_samples: list[int], shard_rows: int) -> list[Shard]:
    """Consecutive samples in shards of about `shard_rows` rows."""
    shards = []
    start, first_rows, num_rows = 0, [], 0
    for sample, count in enumerate(num_rows_of_samples):
        if first_rows and num_rows + count > shard_rows:
            shards.append(Shard(start, first_rows, num_rows))
            start, first_rows, num_rows = sample, [], 0
        first_rows.append(num_rows)
        num_rows += count
    return [*shards, Shard(start, first_rows, num_rows)]


def plan_cache(corpus: Corpus, target_fingerprint: str, vocab_size: int, top_k: int, in_bfloat16: bool) -> CachePlan:
    """The plan of a cache over all responses of a corpus."""
    lengths = response_lengths(corpus)
    return CachePlan(
        corpus=corpus.facts["fingerprint"],
        target=target_fingerprint,
        num_samples=len(lengths),
        num_rows=sum(lengths),
        vocab_size=vocab_size,
        top_k=min(top_k, vocab_size),
        in_bfloat16=in_bfloat16,
    )


def response_lengths(corpus: Corpus) -> list[int]:
    """Tokens of every response, training ones first."""
    return [len(response) for part in (corpus.train, corpus.held_out) for response in part["response_ids"]]


def keep_top(rows: FullRows, top_k: int, vocab_size: int) -> TopRows:
    """The `top_k` most probable tokens of each row, and the mass of all others."""
    logprobs_RV = rows.logprobs_RV(vocab_size)
    logprobs_RK, ids_RK = logprobs_RV.topk(top_k)
    rest_R = logprobs_RV.scatter_(1, ids_RK, -torch.inf).logsumexp(-1)
    return TopRows(ids_RK, logprobs_RK, rest_R.clamp_min(LEAST_LOGPROB))


def _without_blocks(samples: Sequence[tuple[list[int], list[int]]]) -> BlockBatch:
    tokens_BT, prompt_lengths_B, lengths_B = stack_sequences(*zip(*samples, strict=True))
    none_BA = torch.empty(len(samples), 0, dtype=torch.long)
    return BlockBatch(
        tokens_BT=tokens_BT,
        prompt_lengths_B=prompt_lengths_B,
        lengths_B=lengths_B,
        starts_BA=none_BA,
        masks_anchor_BA=none_BA.bool(),
        samples_B=torch.arange(len(samples)),
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"
