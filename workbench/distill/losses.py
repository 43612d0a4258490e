"""Losses of distillation: pure functions of logits, one value per row.

The drafter's logits are q, the target's p. Every divergence is taken over the vocabulary rows that both models have.

Dimensions: R row, V vocabulary, K most probable tokens of a row, X outcomes that are told apart, D width, N block,
L slot of a block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Divergence = Literal["cross_entropy", "forward_kl", "reverse_kl", "total_variation"]
PositionWeights = Literal["uniform", "exponential", "survival"]
Head = Callable[[Tensor], Tensor]
"""From hidden_RD to logits_RV."""

CHUNK_LOGITS = 1 << 26
"""Logits of one chunk of rows: 256 MiB in float32. More rows are taken in turns and recomputed for the gradient."""


@dataclass(frozen=True)
class FullRows:
    """The target's hidden states of rows, from which their whole distributions follow."""

    hidden_RD: Tensor
    head: Head
    """The target's output layer."""

    def split(self, num_rows: int) -> list["FullRows"]:
        """The same in parts of at most `num_rows` rows."""
        return [FullRows(part_RD, self.head) for part_RD in self.hidden_RD.split(num_rows)]

    @torch.no_grad()
    def logits_RV(self, vocab_size: int) -> Tensor:
        """Logits of every token."""
        return self.head(self.hidden_RD)[:, :vocab_size]

    @torch.no_grad()
    def logprobs_RV(self, vocab_size: int) -> Tensor:
        """Log-probabilities of every token."""
        return self.logits_RV(vocab_size).float().log_softmax(-1)

    def pair(self, logprobs_RV: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probabilities of q and of p of every token."""
        return logprobs_RV, self.logprobs_RV(logprobs_RV.shape[1])


@dataclass(frozen=True)
class TopRows:
    """What is left of the target's distribution of rows: its most probable tokens, and all others together.

    Divergences are taken over these K + 1 outcomes: never more than over all tokens, equal to it where K is the whole
    vocabulary, and zero only where q agrees with p on every kept token and on the mass of the rest. So nothing is
    assumed of how the rest is distributed, and none of its mass is moved to the kept tokens.
    """

    ids_RK: Tensor
    logprobs_RK: Tensor
    rest_logprob_R: Tensor
    """Of all other tokens together."""

    def split(self, num_rows: int) -> list["TopRows"]:
        """The same in parts of at most `num_rows` rows."""
        fields = (self.ids_RK, self.logprobs_RK, self.rest_logprob_R)
        return [TopRows(*part) for part in zip(*(field.split(num_rows) for field in fields), strict=True)]

    def pair(self, logprobs_RV: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probabilities of q and of p of every kept token, and of the rest where there is one."""
        own_RK = logprobs_RV.gather(1, self.ids_RK)
        if self.ids_RK.shape[1] == logprobs_RV.shape[1]:
            return own_RK, self.logprobs_RK
        # Not 1 minus the kept mass: most of the time that would be a difference of almost equal numbers.
        rest_R = logprobs_RV.scatter(1, self.ids_RK, -torch.inf).logsumexp(-1)
        return (
            torch.cat([own_RK, rest_R[:, None]], 1),
            torch.cat([self.logprobs_RK, self.rest_logprob_R[:, None]], 1),
        )


TargetRows = FullRows | TopRows


@dataclass(frozen=True)
class RowLosses:
    """What a loss says of each row."""

    loss_R: Tensor
    """Differentiable."""
    label_logprob_R: Tensor
    """The drafter's log-probability of the label; no gradient."""


def cross_entropy(logprobs_RV: Tensor, labels_R: Tensor) -> Tensor:
    """Minus the log-probability of the label."""
    return -logprobs_RV.gather(1, labels_R[:, None])[:, 0]


def divergence(kind: Divergence, logprobs_RX: Tensor, target_logprobs_RX: Tensor) -> Tensor:
    """Distance of the drafter's distribution from the target's.

    Args:
        kind: `forward_kl` is KL(p || q), `reverse_kl` is KL(q || p), `total_variation` is half the L1 distance: its
            complement is the probability that a draft drawn from q is accepted by rejection sampling.
        logprobs_RX: log q.
        target_logprobs_RX: log p, without gradient.
    """
    if kind == "forward_kl":
        return (target_logprobs_RX.exp() * (target_logprobs_RX - logprobs_RX)).sum(-1)
    if kind == "reverse_kl":
        return (logprobs_RX.exp() * (logprobs_RX - target_logprobs_RX)).sum(-1)
    if kind == "total_variation":
        return 0.5 * (logprobs_RX.exp() - target_logprobs_RX.exp()).abs().sum(-1)
    raise ValueError(f"{kind!r} is no divergence between distributions")


class FullForwardKL(torch.autograd.Function):
    """KL(p || q) plus weighted cross-entropy of whole rows of logits, and log q of the labels.

    The same as `divergence` and `cross_entropy` with automatic gradients. Those read and write a dozen arrays of rows
    times vocabulary, one after the other; this one takes rows that fit into a processor's cache through all of it and
    keeps nothing but the gradient, q - p + w (q - label), in the place and precision of the drafter's logits.
    """

    slice_logits = 1 << 19
    """Logits of one slice: 2 MiB in float32, of which some are held at a time."""

    @staticmethod
    def forward(
        ctx: Any, logits_RW: Tensor, target_logits_RV: Tensor, labels_R: Tensor, cross_entropy_weight: float
    ) -> tuple[Tensor, Tensor]:
        """Loss and label log-probability of each row; the first V of the drafter's W tokens are the target's.

        Overwrites `logits_RW`, which must be of no use to anyone else.
        """
        vocab_size = target_logits_RV.shape[1]
        num_rows = max(1, FullForwardKL.slice_logits // vocab_size)
        gradient_RW = logits_RW.detach()
        parts = []
        for start in range(0, len(labels_R), num_rows):
            rows = slice(start, start + num_rows)
            label_R1 = labels_R[rows, None]
            log_q_RV = logits_RW[rows, :vocab_size].float().log_softmax(-1)
            log_p_RV = target_logits_RV[rows].float().log_softmax(-1)
            p_RV = log_p_RV.exp()
            label_logprob_R1 = log_q_RV.gather(1, label_R1)
            divergence_R1 = torch.linalg.vecdot(p_RV, log_p_RV.sub_(log_q_RV))[:, None]
            loss_R1 = divergence_R1 - cross_entropy_weight * label_logprob_R1
            slope_RV = log_q_RV.exp_().mul_(1 + cross_entropy_weight).sub_(p_RV)
            slope_RV.scatter_add_(1, label_R1, torch.full_like(loss_R1, -cross_entropy_weight))
            gradient_RW[rows, :vocab_size] = slope_RV
            parts.append(torch.cat([loss_R1, label_logprob_R1], 1))
        gradient_RW[:, vocab_size:] = 0
        loss_R, label_logprob_R = torch.cat(parts).unbind(1)
        ctx.save_for_backward(gradient_RW)
        ctx.mark_non_differentiable(label_logprob_R)
        return loss_R, label_logprob_R

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        """Gradient of the drafter's logits."""
        (gradient_RW,) = ctx.saved_tensors
        return gradient_RW.mul_(slopes[0][:, None]), None, None, None


def row_losses(
    hidden_RD: Tensor,
    labels_R: Tensor,
    head: Head,
    target: TargetRows | None,
    kind: Divergence,
    cross_entropy_weight: float,
    vocab_size: int,
    chunk_logits: int = CHUNK_LOGITS,
) -> RowLosses:
    """Divergence plus weighted cross-entropy of each row, with at most `chunk_logits` logits of a model held at once.

    Args:
        hidden_RD: The drafter's last hidden states.
        labels_R: Tokens to predict.
        head: The drafter's output layer.
        target: The target's distributions of the same rows; not looked at for plain cross-entropy.
        kind: Which divergence; `cross_entropy` is cross-entropy alone, whatever its weight.
        cross_entropy_weight: Weight of cross-entropy beside a divergence.
        vocab_size: Vocabulary rows that both models have.
        chunk_logits: Rows per chunk times vocabulary rows.
    """

    def of_chunk(hidden_RD: Tensor, target: TargetRows | None, labels_R: Tensor) -> tuple[Tensor, Tensor]:
        logits_RV = head(hidden_RD)
        if kind == "forward_kl" and isinstance(target, FullRows):
            return FullForwardKL.apply(logits_RV, target.logits_RV(vocab_size), labels_R, cross_entropy_weight)
        logprobs_RV = logits_RV[:, :vocab_size].float().log_softmax(-1)
        label_loss_R = cross_entropy(logprobs_RV, labels_R)
        if kind == "cross_entropy":
            return label_loss_R, -label_loss_R.detach()
        assert target is not None
        loss_R = divergence(kind, *target.pair(logprobs_RV)) + cross_entropy_weight * label_loss_R
        return loss_R, -label_loss_R.detach()

    chunk_rows = max(1, chunk_logits // vocab_size)
    if len(labels_R) <= chunk_rows:
        return RowLosses(*of_chunk(hidden_RD, target, labels_R))
    num_chunks = -(-len(labels_R) // chunk_rows)
    target_chunks = [None] * num_chunks if target is None else target.split(chunk_rows)
    parts = [
        checkpoint(of_chunk, hidden, target_rows, labels, use_reentrant=False)
        for hidden, target_rows, labels in zip(
            hidden_RD.split(chunk_rows), target_chunks, labels_R.split(chunk_rows), strict=True
        )
    ]
    losses, logprobs = zip(*parts, strict=True)  # pyright: ignore[reportArgumentType]
    return RowLosses(torch.cat(losses), torch.cat(logprobs))


def position_weights(kind: PositionWeights, label_logprob_NL: Tensor, decay: float) -> Tensor:
    """Weight of each slot of each block; no gradient.

    Args:
        kind: `uniform`; `exponential`, exp(-slot / decay); or `survival`, the drafter's own probability of all labels
            before the slot: the share of rounds in which the slot matters.
        label_logprob_NL: The drafter's log-probability of each slot's label.
        decay: Slots in which the exponential weight falls to 1/e.
    """
    if kind == "uniform":
        return torch.ones_like(label_logprob_NL)
    if kind == "exponential":
        slot_L = torch.arange(label_logprob_NL.shape[-1], device=label_logprob_NL.device)
        return torch.exp(-slot_L / decay).expand_as(label_logprob_NL)
    return functional.pad(label_logprob_NL.detach()[:, :-1], (1, 0)).cumsum(-1).exp()


def weighted_mean(loss: Tensor, weight: Tensor, total_weight: Tensor | None = None) -> Tensor:
    """Mean of `loss` under `weight` of the same shape; 0 where all weights are 0.

    Args:
        loss: Of each row.
        weight: Of each row.
        total_weight: Divides instead of the sum of `weight`.
    """
    total_weight = weight.sum() if total_weight is None else total_weight
    return (loss * weight).sum() / total_weight.clamp_min(torch.finfo(weight.dtype).tiny)
