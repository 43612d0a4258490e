"""Blocks of training and of the acceptance estimate: where they start, which tokens they hold, what they predict.

One pass is `[clean sequence | block 1 | ... | block A]`. A block that starts at position `s` holds the anchor (the
token at `s`, or a mask) and masks after it; its row `i` stands at position `s + i` and predicts the token at
`s + i + 1`. In decoding the anchor is the last committed token, and the first draft is made after the target has
emitted the first response token: so blocks start inside the response, and where at least one token follows.

Dimensions: B sequence, T clean position, A block of a sequence, L slot of a block, R row of the pass (T clean rows,
then A * L block rows), D width.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.drafter import attention as by_block
from workbench.drafter import flex
from workbench.drafter.attention import (
    Attention,
    BlockVisibility,
    additive,
    attending,
    block_visibility,
    choose_attention,
)
from workbench.drafter.model import DrafterSpec
from workbench.drafter.visibility import PADDING, Rows, block_rows, clean_rows, visible_mask

UNSUPERVISED = -100
"""Label of rows that predict nothing known."""
ABSENT = -1
"""Start of a block that is not there: a short response has fewer places for blocks than its batch."""
WIDTH_STEP = 32
"""Sequences are padded to a multiple of it: a CPU prepares matrix products anew for every shape, which costs ten times
the product of a small model, and keeps only so many shapes."""


@dataclass(frozen=True)
class BlockBatch:
    """Right-padded sequences and the blocks drawn in them; integer tensors unless noted."""

    tokens_BT: Tensor
    prompt_lengths_B: Tensor
    """Tokens before the response."""
    lengths_B: Tensor
    """Tokens of prompt and response."""
    starts_BA: Tensor
    """Position of each block's anchor, or ABSENT."""
    masks_anchor_BA: Tensor
    """Boolean: the anchor itself is hidden."""
    samples_B: Tensor
    """Number of each sequence in its data set, to name it."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "BlockBatch":
        """The batch on another device."""
        tensors = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return BlockBatch(**{name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()})

    def part(self, index: int, num_parts: int) -> "BlockBatch":
        """Every `num_parts`-th sequence from number `index` on: in a batch sorted by length, parts of like length."""
        return BlockBatch(*(getattr(self, field.name)[index::num_parts] for field in dataclasses.fields(self)))


@dataclass(frozen=True)
class BlockPass:
    """What a model is given for a `BlockBatch`, and what its block rows should predict."""

    input_ids_BR: Tensor
    position_ids_BR: Tensor
    rows: Rows
    causal_blocks: bool
    labels_BAL: Tensor
    """Token that the slot predicts, or UNSUPERVISED."""
    num_clean: int
    """T: rows of the pass before the first block."""

    @property
    def visible_B1RR(self) -> Tensor:
        """Boolean, in the shape that `transformers` takes: query row (third dimension) sees key row (last)."""
        return visible_mask(self.rows, self.rows, self.causal_blocks)[:, None]

    @property
    def visibility(self) -> BlockVisibility:
        """The same without the pairs of rows that never see one another."""
        clean, blocks = self.rows.split(self.num_clean)
        return block_visibility(clean, blocks, self.labels_BAL.shape[-1], self.causal_blocks)


def stack_sequences(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Pads prompts with their responses on the right with zeros, to a multiple of WIDTH_STEP.

    Returns:
        tokens_BT, prompt_lengths_B, lengths_B.
    """
    prompt_lengths_B = torch.tensor([len(prompt) for prompt in prompts])
    lengths_B = prompt_lengths_B + torch.tensor([len(response) for response in responses])
    width = -(-int(lengths_B.max()) // WIDTH_STEP) * WIDTH_STEP
    tokens_BT = torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt, response in zip(tokens_BT, prompts, responses, strict=True):
        row[: len(prompt) + len(response)] = torch.tensor([*prompt, *response])
    return tokens_BT, prompt_lengths_B, lengths_B


def draw_starts(prompt_lengths_B: Tensor, lengths_B: Tensor, num_blocks: int, generator: torch.Generator) -> Tensor:
    """Draws up to `num_blocks` distinct block starts per response, uniformly; ABSENT fills up short responses.

    Returns:
        starts_BA with A = num_blocks, in random order.
    """
    num_places_B = (lengths_B - 1 - prompt_lengths_B).clamp_min(0)
    width = max(num_blocks, int(num_places_B.max()))
    keys_BP = torch.rand(len(lengths_B), width, generator=generator)
    keys_BP[torch.arange(width) >= num_places_B[:, None]] = -1.0
    keys_BA, offsets_BA = keys_BP.topk(num_blocks, dim=-1)
    return torch.where(keys_BA >= 0, prompt_lengths_B[:, None] + offsets_BA, ABSENT)


def lay_out(batch: BlockBatch, spec: DrafterSpec) -> BlockPass:
    """Lays the clean sequences and their blocks out as one pass."""
    tokens_BT, starts_BA = batch.tokens_BT, batch.starts_BA
    num_sequences, num_clean = tokens_BT.shape
    device = tokens_BT.device

    clean = clean_rows(0, num_clean)
    clean_position_BT = clean.position.to(device).expand(num_sequences, num_clean)
    is_padding_BT = clean_position_BT >= batch.lengths_B[:, None]
    clean = Rows(
        clean_position_BT,
        torch.where(is_padding_BT, PADDING, clean.block.to(device)),
        clean.block_start.to(device).expand_as(clean_position_BT),
    )
    rows = Rows.concatenate([clean, block_rows(starts_BA, spec.block_size)])

    block_ids_BAL = torch.full((*starts_BA.shape, spec.block_size), spec.mask_token_id, device=device)
    anchors_BA = tokens_BT.gather(1, starts_BA.clamp_min(0))
    block_ids_BAL[..., 0] = torch.where(batch.masks_anchor_BA, spec.mask_token_id, anchors_BA)

    label_position_BAL = starts_BA[..., None] + torch.arange(1, spec.block_size + 1, device=device)
    is_labelled_BAL = (starts_BA[..., None] >= 0) & (label_position_BAL < batch.lengths_B[:, None, None])
    labels_BAL = tokens_BT.gather(1, label_position_BAL.clamp(0, num_clean - 1).flatten(1)).view_as(label_position_BAL)
    return BlockPass(
        input_ids_BR=torch.cat([tokens_BT, block_ids_BAL.flatten(1)], 1),
        position_ids_BR=rows.position.clamp_min(0),
        rows=rows,
        causal_blocks=spec.block_attention == "causal",
        labels_BAL=torch.where(is_labelled_BAL, labels_BAL, UNSUPERVISED),
        num_clean=num_clean,
    )


def hidden_rows(model: Any, block_pass: BlockPass, attention: Attention = "auto") -> tuple[Tensor, Tensor]:
    """Runs a causal LM without its head over a pass.

    Args:
        model: Attends as `attention` says for this pass only.
        block_pass: On the model's device.
        attention: See `choose_attention`; all give the same.

    Returns:
        hidden_BTD of the clean rows and hidden_BALD of the block rows.
    """
    # A mask is given in any case, or the model would make one of its own.
    if choose_attention(attention, block_pass.input_ids_BR.device) == "flex":
        name, attend = flex.NAME, flex.attend_by_flex
        inputs = {"attention_mask": flex.block_mask(block_pass.rows, block_pass.causal_blocks)}
    else:
        name, attend = by_block.NAME, by_block.attend_by_block
        bias = additive(block_pass.visibility, model.dtype)
        inputs = {"attention_mask": bias[0][:, 0], "block_bias": bias}
    with attending(model, name, attend):
        hidden_BRD = model.base_model(
            input_ids=block_pass.input_ids_BR, position_ids=block_pass.position_ids_BR, use_cache=False, **inputs
        ).last_hidden_state
    clean_BTD, blocks_BRD = hidden_BRD.split([block_pass.num_clean, hidden_BRD.shape[1] - block_pass.num_clean], dim=1)
    return clean_BTD, blocks_BRD.unflatten(1, block_pass.labels_BAL.shape[1:])
