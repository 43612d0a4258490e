"""The target as a teacher: its distributions at the positions of a batch, from a pass in the same step.

Dimensions: B sequence, T clean position, R row, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from workbench.distill.losses import FullRows
from workbench.distill.precision import Bfloat16Copy
from workbench.drafter.blocks import BlockBatch
from workbench.recipe import DistillOptions


def looks_at_target(options: DistillOptions) -> bool:
    """A loss compares with the target's distribution, not only with its tokens."""
    return options.denoising != "cross_entropy" or options.autoregressive == "forward_kl"


class OnlineTeacher:
    """The frozen target.

    Args:
        model: Left as it is, but for the device.
        in_bfloat16: Its passes compute in bfloat16, whatever its weights are kept in.
    """

    def __init__(self, model: Any, in_bfloat16: bool):
        self.model = model
        self.in_bfloat16 = in_bfloat16
        self._copy: Bfloat16Copy | None = None

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer."""
        return self.model.get_output_embeddings().weight.shape[0]

    def place(self, device: torch.device) -> None:
        """Moves the target; a copy in bfloat16 is made again there."""
        if self.model.device != device:
            self.model.to(device)
            self._copy = None

    @property
    def computing(self) -> Any:
        """The target in the precision that its passes compute in."""
        if not self.in_bfloat16:
            return self.model
        self._copy = self._copy or Bfloat16Copy(self.model)
        return self._copy

    @torch.no_grad()
    def consult(self, batch: BlockBatch) -> Callable[[Tensor, Tensor], FullRows]:
        """Runs the target over the clean sequences; gives its rows by sequence and position."""
        # Causal rows never see the padding on their right.
        hidden_BTD = self.computing.base_model(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state
        head = self.computing.get_output_embeddings()
        return lambda sequence_R, position_R: FullRows(hidden_BTD[sequence_R, position_R], head)
