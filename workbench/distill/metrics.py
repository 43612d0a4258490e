"""The estimated acceptance length of a drafter on held-out blocks.

Dimensions: N block, L slot of a block.
"""

import torch
from torch import Tensor
from torchmetrics import Metric


def emitted_tokens(matches_NL: Tensor) -> Tensor:
    """Tokens that a round would emit per block: the matching slots before the first mismatch, and the bonus token.

    Never a product of per-slot rates: matches within a block are far from independent.
    """
    return 1 + matches_NL.long().cumprod(-1).sum(-1)


class EstimatedAcceptance(Metric):
    """Mean of `emitted_tokens`, and the top-1 agreement of each slot; exact integer states.

    Args:
        draft_length: Slots that are sent to verification; later ones count in no figure.
    """

    full_state_update = False
    higher_is_better = True
    num_emitted: Tensor
    num_blocks: Tensor
    matches_L: Tensor
    labels_L: Tensor

    def __init__(self, draft_length: int):
        # Every process of a training judges the same blocks.
        super().__init__(sync_on_compute=False)
        self.draft_length = draft_length
        self.add_state("num_emitted", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("num_blocks", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("matches_L", torch.zeros(draft_length, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("labels_L", torch.zeros(draft_length, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, matches_NL: Tensor, is_labelled_NL: Tensor) -> None:
        """Adds blocks.

        Args:
            matches_NL: True where the drafter's top token is the target's; False past the end of a response.
            is_labelled_NL: True where the slot has a token to predict.
        """
        matches_NL, is_labelled_NL = matches_NL[:, : self.draft_length], is_labelled_NL[:, : self.draft_length]
        self.num_emitted += emitted_tokens(matches_NL).sum()
        self.num_blocks += len(matches_NL)
        self.matches_L += matches_NL.sum(0)
        self.labels_L += is_labelled_NL.sum(0)

    def compute(self) -> Tensor:
        """Estimated acceptance length: mean tokens per round, the bonus included."""
        return self.num_emitted.double() / self.num_blocks

    def slot_agreement(self) -> Tensor:
        """Top-1 agreement of each slot, whatever happened before it."""
        return self.matches_L.double() / self.labels_L.clamp_min(1)
