"""Held-out blocks on which drafters are compared: drawn once, the same for every candidate.

Every start is scored twice, with its anchor known and with its anchor masked, so that both figures describe the same
places.

Dimensions: B sequence, A block of a sequence, L slot of a block, N block.
"""

from dataclasses import dataclass
from typing import Any

import datasets
import torch
from torch import Tensor

from workbench.distill.losses import CHUNK_LOGITS
from workbench.distill.metrics import emitted_tokens
from workbench.drafter.blocks import UNSUPERVISED, BlockBatch, draw_starts, hidden_rows, lay_out, stack_sequences
from workbench.drafter.model import Drafter, DrafterSpec

SEQUENCES_PER_BATCH = 16


@dataclass(frozen=True)
class EvaluationBlocks:
    """Fixed blocks in batches; blocks are numbered through in the order of `is_masked`."""

    batches: list[BlockBatch]

    @property
    def is_masked(self) -> Tensor:
        """Boolean per block (N,): its anchor is masked. A batch's anchored blocks come before its masked ones."""
        return torch.cat([batch.masks_anchor_BA.T[batch.starts_BA.T >= 0] for batch in self.batches])

    @property
    def num_blocks(self) -> int:
        """Blocks of both kinds together."""
        return sum(int((batch.starts_BA >= 0).sum()) for batch in self.batches)


def draw_evaluation_blocks(
    samples: datasets.Dataset, num_starts: int, seed: int, starts_per_sequence: int = 4
) -> EvaluationBlocks:
    """Draws starts in held-out responses, `starts_per_sequence` in each of as many sequences as that takes.

    Args:
        samples: Rows with prompt_ids and response_ids.
        num_starts: Starts to draw; each gives an anchored and a masked-anchor block. Fewer where `samples` ends.
        seed: The same seed and samples give the same blocks.
        starts_per_sequence: More are cheaper, fewer are less alike.
    """
    generator = torch.Generator().manual_seed(seed)
    num_sequences = min(len(samples), -(-num_starts // starts_per_sequence))
    order = torch.randperm(len(samples), generator=generator)[:num_sequences].tolist()
    rows = sorted(
        ((index, samples[index]) for index in order),
        key=lambda item: len(item[1]["prompt_ids"]) + len(item[1]["response_ids"]),
    )
    batches = []
    for begin in range(0, num_sequences, SEQUENCES_PER_BATCH):
        part = rows[begin : begin + SEQUENCES_PER_BATCH]
        tokens_BT, prompt_lengths_B, lengths_B = stack_sequences(
            [row["prompt_ids"] for _, row in part], [row["response_ids"] for _, row in part]
        )
        starts_BA = draw_starts(prompt_lengths_B, lengths_B, starts_per_sequence, generator)
        batches.append(
            BlockBatch(
                tokens_BT=tokens_BT,
                prompt_lengths_B=prompt_lengths_B,
                lengths_B=lengths_B,
                starts_BA=starts_BA.repeat(1, 2),
                masks_anchor_BA=torch.arange(2 * starts_per_sequence).expand(len(part), -1) >= starts_per_sequence,
                samples_B=torch.tensor([index for index, _ in part]),
            )
        )
    return EvaluationBlocks(batches)


@torch.no_grad()
def score_blocks(drafter: Drafter, blocks: EvaluationBlocks, draft_length: int) -> Tensor:
    """Tokens that a round from each block would emit: accepted ones and the bonus.

    Returns:
        Integers of shape (N,), in the order of `blocks.is_masked`; subtract two drafters' for a paired comparison.
    """
    was_training = drafter.model.training
    drafter.model.eval()
    device = drafter.model.device
    scores = []
    for batch in blocks.batches:
        block_pass = lay_out(batch.to(device), drafter.spec)
        _, hidden_BALD = hidden_rows(drafter.model, block_pass)
        matches_BAL = match_slots(drafter.model, drafter.spec, block_pass.labels_BAL, hidden_BALD)
        emitted_AB = emitted_tokens(matches_BAL[..., :draft_length]).T.cpu()
        scores.append(emitted_AB[batch.starts_BA.T >= 0])
    drafter.model.train(was_training)
    return torch.cat(scores)


def match_slots(model: Any, spec: DrafterSpec, labels_BAL: Tensor, hidden_BALD: Tensor) -> Tensor:
    """Where the drafter's top token, among those it may propose, is the label; False where there is none."""
    is_labelled_BAL = labels_BAL != UNSUPERVISED
    head = model.get_output_embeddings()
    parts_RD = hidden_BALD[is_labelled_BAL].split(max(1, CHUNK_LOGITS // spec.vocab_size))
    top_R = torch.cat([head(part_RD)[:, : spec.vocab_size].argmax(-1) for part_RD in parts_RD])
    matches_BAL = torch.zeros_like(is_labelled_BAL)
    matches_BAL[is_labelled_BAL] = top_R == labels_BAL[is_labelled_BAL]
    return matches_BAL
