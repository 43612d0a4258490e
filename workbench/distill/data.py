"""Training data as Lightning sees it: batches of sequences of like length, with blocks drawn afresh.

Dimensions: B sequence, T clean position, A block of a sequence.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, IterableDataset

from workbench.corpus.responses import Corpus
from workbench.distill.evaluation import EvaluationBlocks
from workbench.drafter.blocks import BlockBatch, draw_starts, stack_sequences
from workbench.errors import WorkbenchError
from workbench.recipe import DistillOptions
from workbench.targets import Target

BUCKET_BATCHES = 32
"""Batches that are cut from one pool sorted by length: little padding, and still a mixture."""


class DistillationData(lightning.LightningDataModule):
    """Batches of sequences of like length with freshly drawn blocks.

    Batch number i is a function of the samples, the seed and i alone, so that a resumed training needs only its number.
    """

    def __init__(
        self,
        samples: Any,
        held_out: EvaluationBlocks,
        options: DistillOptions,
        seed: int,
    ):
        super().__init__()
        self.prompts = samples["prompt_ids"]
        self.responses = samples["response_ids"]
        self.held_out = held_out
        self.options = options
        self.seed = seed
        self.first_batch = 0

    def train_dataloader(self) -> DataLoader:
        """Endless batches, from the one after the last that was trained on."""
        return DataLoader(_TrainingBatches(self), batch_size=None)

    def val_dataloader(self) -> DataLoader:
        """The held-out blocks."""
        return DataLoader(self.held_out.batches, batch_size=None)  # pyright: ignore[reportArgumentType]

    def state_dict(self) -> dict[str, Any]:
        """Position in the data."""
        assert self.trainer is not None
        return {"first_batch": self.trainer.fit_loop.epoch_loop.total_batch_idx + 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues after a checkpoint's position."""
        self.first_batch = state_dict["first_batch"]

    def batch(self, number: int) -> BlockBatch:
        """Batch `number` of the training."""
        num_batches = max(1, len(self.responses) // self.options.batch_size)
        epoch, position = divmod(number, num_batches)
        samples = self._epoch_order(epoch)[position]
        tokens_BT, prompt_lengths_B, lengths_B = stack_sequences(
            [self.prompts[index] for index in samples], [self.responses[index] for index in samples]
        )
        generator = torch.Generator().manual_seed(random.Random(f"blocks {self.seed} {number}").getrandbits(63))
        starts_BA = draw_starts(prompt_lengths_B, lengths_B, self.options.blocks_per_sequence, generator)
        return BlockBatch(
            tokens_BT=tokens_BT,
            prompt_lengths_B=prompt_lengths_B,
            lengths_B=lengths_B,
            starts_BA=starts_BA,
            masks_anchor_BA=torch.rand(starts_BA.shape, generator=generator) < self.options.masked_anchor_fraction,
            samples_B=torch.tensor(samples),
        )

    def _epoch_order(self, epoch: int) -> list[list[int]]:
        if epoch != getattr(self, "_ordered_epoch", None):
            lengths = [len(prompt) + len(reply) for prompt, reply in zip(self.prompts, self.responses, strict=True)]
            self._order = bucketed_batches(
                lengths, self.options.batch_size, random.Random(f"order {self.seed} {epoch}")
            )
            self._ordered_epoch = epoch
        return self._order


class _TrainingBatches(IterableDataset):
    def __init__(self, data: DistillationData):
        self.data = data

    def __iter__(self) -> Iterator[BlockBatch]:
        return (self.data.batch(number) for number in itertools.count(self.data.first_batch))


def bucketed_batches(lengths: list[int], batch_size: int, rng: random.Random) -> list[list[int]]:
    """All samples in random batches of like length; those that fill no batch at the end wait for another epoch."""
    order = list(range(len(lengths)))
    rng.shuffle(order)
    pool_size = batch_size * BUCKET_BATCHES
    batches = []
    for begin in range(0, len(order), pool_size):
        pool = sorted(order[begin : begin + pool_size], key=lengths.__getitem__)
        batches += [pool[first : first + batch_size] for first in range(0, len(pool), batch_size)]
    batches = [batch for batch in batches if len(batch) == min(batch_size, len(lengths))]
    rng.shuffle(batches)
    return batches


def check_corpus(corpus: Corpus, target: Target, vocab_rows: int) -> None:
    """Refuses a corpus of another template or tokenizer than the target's, or with nothing to learn from.

    Args:
        corpus: Both parts are looked at.
        target: What it must fit.
        vocab_rows: Rows of the smaller embedding of target and drafter.
    """
    written = corpus.facts.get("template_hash", target.template_hash)
    if written != target.template_hash:
        raise WorkbenchError(
            f"the corpus was written with another chat template ({written}) than the target {target.identity} has "
            f"({target.template_hash}): write it again"
        )
    for part, samples in (("training", corpus.train), ("held-out", corpus.held_out)):
        check_samples(samples["prompt_ids"], samples["response_ids"], vocab_rows, part)


def check_samples(
    prompts: Sequence[list[int]], responses: Sequence[list[int]], vocab_rows: int, part: str = "training"
) -> None:
    """Refuses samples with nothing to learn from or with tokens that no row stands for, and names the first one."""
    if len(responses) == 0:
        raise WorkbenchError(f"the corpus holds no {part} response: write it again")
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if not prompt or len(response) < 2:
            what = "no prompt token" if not prompt else f"a response of {len(response)} tokens: nothing to supervise"
            raise WorkbenchError(f"{part} sample {index} has {what}; write the corpus again")
        highest = max(max(prompt), max(response))
        if highest >= vocab_rows:
            raise WorkbenchError(
                f"{part} sample {index} has token {highest}, but the vocabulary ends at {vocab_rows - 1}: it was "
                "written with another tokenizer; write the corpus again"
            )
