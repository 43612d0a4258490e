"""Scores of a drafter with some layers left out, on fixed held-out blocks, each computed once.

Scores are kept in one small file per set of dropped layers, named after the content that they depend on: workers
share them, an interrupted search finds them again, and a changed drafter or corpus never meets old ones.
"""

import contextlib
import json
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workbench.distill.evaluation import EvaluationBlocks, draw_evaluation_blocks, score_blocks
from workbench.drafter.blocks import BlockBatch
from workbench.drafter.model import Drafter, load_drafter
from workbench.files import fingerprint, sha256_of_file, write_json
from workbench.prune.encoding import LayerSet
from workbench.prune.objective import retained_acceptance
from workbench.validate.statistics import Estimate

RUNGS = (256, 2000)
"""Blocks of the cheap and of the precise estimate; the first are among the second."""


class Skipped(nn.Module):
    """Stands in for a dropped layer: hands its input on."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """The residual stream without this layer's part."""
        return hidden_states


@contextlib.contextmanager
def skipped_layers(drafter: Drafter, dropped: Collection[int]) -> Iterator[Drafter]:
    """The drafter without the layers `dropped` (original indices), for passes without a cache; nothing is copied."""
    layers = drafter.model.base_model.layers
    positions = [drafter.spec.kept_layers.index(layer) for layer in dropped]
    originals = [layers[position] for position in positions]
    try:
        for position in positions:
            layers[position] = Skipped()
        yield drafter
    finally:
        for position, original in zip(positions, originals, strict=True):
            layers[position] = original


@dataclass(frozen=True)
class BlockScores:
    """Tokens emitted from each block, and the response that each block lies in."""

    emitted_N: NDArray[np.int64]
    sequence_N: NDArray[np.int64]
    is_masked_N: NDArray[np.bool_]

    def retained(self, reference: "BlockScores") -> Estimate:
        """Retained acceptance length against a reference on the same blocks."""
        return retained_acceptance(self.emitted_N, reference.emitted_N, self.sequence_N)

    def acceptance_lengths(self) -> dict[str, float]:
        """Mean emitted tokens from all blocks, from those with a known anchor and from those with a masked one."""
        return {
            "all": float(self.emitted_N.mean()),
            "anchored": float(self.emitted_N[~self.is_masked_N].mean()),
            "masked": float(self.emitted_N[self.is_masked_N].mean()),
        }


class BlockScorer:
    """Scores a drafter without any set of its layers, from the cache where it can.

    Args:
        folder: The drafter's.
        samples: Held-out responses that blocks are drawn from.
        seed: Of the blocks: the same seed and samples give the same blocks for every drafter.
        draft_length: Slots that count.
        cache_folder: Where scores are kept.
        dtype: Precision of the drafter, as it will decode.
        device: Where the drafter runs.
    """

    def __init__(
        self,
        folder: Path,
        samples: datasets.Dataset,
        seed: int,
        draft_length: int,
        cache_folder: Path,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        self.drafter = load_drafter(folder, dtype, device)
        self.draft_length = draft_length
        self.cache_folder = cache_folder
        batches = draw_evaluation_blocks(samples, RUNGS[-1] // 2, seed).batches
        # Batches come sorted by length; shuffled, the first ones are a fair sample of all.
        random.Random(f"rungs {seed}").shuffle(batches)
        self.blocks = EvaluationBlocks(batches)
        blocks = [_describe(batch) for batch in batches]
        self.content = fingerprint([drafter_fingerprint(folder), dtype, draft_length, blocks])
        self.num_evaluations = 0
        """Sets that were scored here rather than found in the cache."""

    def rung_blocks(self, rung: int) -> EvaluationBlocks:
        """The blocks of a rung: as many whole batches as it takes, or all there are."""
        num_blocks, chosen = 0, []
        for batch in self.blocks.batches:
            if num_blocks >= RUNGS[rung]:
                break
            chosen.append(batch)
            num_blocks += EvaluationBlocks([batch]).num_blocks
        return EvaluationBlocks(chosen)

    def scores(self, dropped: LayerSet, rung: int) -> BlockScores:
        """Scores without the layers `dropped`, on the blocks of a rung."""
        blocks = self.rung_blocks(rung)
        path = self.cache_folder / f"{self.content}-{'-'.join(map(str, dropped)) or 'none'}.json"
        by_batch: list[list[int]] = read_scores(path)
        missing = blocks.batches[len(by_batch) :]
        if missing:
            self.num_evaluations += not by_batch
            with skipped_layers(self.drafter, dropped) as smaller:
                by_batch += [
                    score_blocks(smaller, EvaluationBlocks([batch]), self.draft_length).tolist() for batch in missing
                ]
            write_json(path, by_batch)
        return BlockScores(
            emitted_N=np.array([score for batch in by_batch[: len(blocks.batches)] for score in batch]),
            sequence_N=torch.cat([_sequences(batch) for batch in blocks.batches]).numpy(),
            is_masked_N=blocks.is_masked.numpy(),
        )

    def retained(self, dropped: LayerSet, rung: int) -> Estimate:
        """Retained acceptance length without the layers `dropped`, against this drafter with all its layers."""
        return self.scores(dropped, rung).retained(self.scores((), rung))


def drafter_fingerprint(folder: Path) -> str:
    """Changes with a drafter's weights and configuration, not with its calibration."""
    paths = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
    return fingerprint({path.name: sha256_of_file(path) for path in paths})


def read_scores(path: Path) -> list[list[int]]:
    """Cached scores by batch; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def _sequences(batch: BlockBatch) -> Tensor:
    """Response of every block, in the order of `score_blocks`."""
    return batch.samples_B.expand(batch.starts_BA.shape[1], -1)[batch.starts_BA.T >= 0]


def _describe(batch: BlockBatch) -> list[Any]:
    return [
        batch.tokens_BT.tolist(),
        batch.lengths_B.tolist(),
        batch.starts_BA.tolist(),
        batch.masks_anchor_BA.tolist(),
    ]
