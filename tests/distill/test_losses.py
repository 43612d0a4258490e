import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workbench.distill.losses import (
    FullForwardKL,
    FullRows,
    TopRows,
    cross_entropy,
    divergence,
    position_weights,
    row_losses,
    weighted_mean,
)

DIVERGENCES = ("forward_kl", "reverse_kl", "total_variation")


def logprobs(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_hand_computed_row_of_three():
    q, p = logprobs([0.5, 0.25, 0.25]), logprobs([0.25, 0.5, 0.25])
    assert cross_entropy(q, torch.tensor([1])).item() == pytest.approx(math.log(4))
    assert divergence("forward_kl", q, p).item() == pytest.approx(0.25 * math.log(2))
    assert divergence("reverse_kl", q, p).item() == pytest.approx(0.25 * math.log(2))
    assert divergence("total_variation", q, p).item() == pytest.approx(0.25)


def test_forward_and_reverse_take_their_expectation_under_different_models():
    q, p = logprobs([0.5, 0.5]), logprobs([0.9, 0.1])
    forward = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    reverse = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert divergence("forward_kl", q, p).item() == pytest.approx(forward)
    assert divergence("reverse_kl", q, p).item() == pytest.approx(reverse)


@given(seed=st.integers(0, 1000))
def test_total_variation_is_the_probability_of_rejection(seed: int):
    generator = torch.Generator().manual_seed(seed)
    q, p = (torch.randn(4, 7, generator=generator, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    acceptance = torch.minimum(q.exp(), p.exp()).sum(-1)
    torch.testing.assert_close(1 - divergence("total_variation", q, p), acceptance)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_divergences_vanish_only_between_equals(kind):
    q = torch.randn(3, 8).log_softmax(-1)
    assert divergence(kind, q, q).abs().max() < 1e-6
    assert (divergence(kind, q, torch.randn(3, 8).log_softmax(-1)) > 0.01).all()


@pytest.mark.parametrize("kind", ["cross_entropy", *DIVERGENCES])
def test_chunks_change_neither_losses_nor_gradients(kind):
    torch.manual_seed(0)
    hidden = torch.randn(23, 6, requires_grad=True)
    target_hidden, labels = torch.randn(23, 5), torch.randint(11, (23,))
    head, target_head = torch.nn.Linear(6, 12, bias=False), torch.nn.Linear(5, 11, bias=False)
    results = []
    for chunk_logits in (10**6, 44, 1):
        rows = row_losses(hidden, labels, head, FullRows(target_hidden, target_head), kind, 0.5, 11, chunk_logits)
        gradients = torch.autograd.grad(rows.loss_R.square().sum(), [hidden, head.weight])
        results.append((rows.loss_R, rows.label_logprob_R, *gradients))
    for other in results[1:]:
        for value, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_row_losses_against_their_definition(kind):
    torch.manual_seed(0)
    hidden, target_hidden, labels = torch.randn(9, 6), torch.randn(9, 5), torch.randint(10, (9,))
    head, target_head = torch.nn.Linear(6, 12), torch.nn.Linear(5, 10)
    rows = row_losses(hidden, labels, head, FullRows(target_hidden, target_head), kind, 0.5, 10)
    logits = head(hidden)[:, :10]
    label_loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected = divergence(kind, logits.log_softmax(-1), target_head(target_hidden).log_softmax(-1)) + 0.5 * label_loss
    torch.testing.assert_close(rows.loss_R, expected)
    torch.testing.assert_close(rows.label_logprob_R, -label_loss)


def top_rows(logprobs_RV: torch.Tensor, top_k: int) -> TopRows:
    logprobs_RK, ids_RK = logprobs_RV.topk(top_k)
    rest_R = logprobs_RV.scatter(1, ids_RK, -torch.inf).logsumexp(-1)
    return TopRows(ids_RK, logprobs_RK, rest_R)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_the_most_probable_tokens_are_all_of_them_where_none_is_left_out(kind):
    q = torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    p = torch.randn(5, 12, dtype=torch.float64).log_softmax(-1)
    full = divergence(kind, q.log_softmax(-1), p)
    top = divergence(kind, *top_rows(p, 12).pair(q.log_softmax(-1)))
    torch.testing.assert_close(top, full)
    for of_top, of_full in zip(*(torch.autograd.grad(loss.sum(), q) for loss in (top, full)), strict=True):
        torch.testing.assert_close(of_top, of_full)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_the_rest_counts_as_one_outcome(kind):
    """Reference: both distributions with the tail's tokens merged by hand."""
    q, p = (torch.randn(5, 12, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    order = p.argsort(-1, descending=True)
    merged = []
    for distribution in (q, p):
        sorted_probs = distribution.exp().gather(1, order)
        merged.append(torch.cat([sorted_probs[:, :4], sorted_probs[:, 4:].sum(-1, keepdim=True)], 1).log())
    top = divergence(kind, *top_rows(p, 4).pair(q))
    torch.testing.assert_close(top, divergence(kind, *merged))
    assert (top <= divergence(kind, q, p) + 1e-12).all()
    assert (top > 0).all()


def test_mass_that_is_left_out_pulls_on_the_drafter():
    """A drafter that puts everything on the kept tokens is wrong by the mass of the rest."""
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    q = torch.tensor([[4.0, 3.0, -9.0, -9.0]], requires_grad=True)
    divergence("forward_kl", *top_rows(p, 2).pair(q.log_softmax(-1))).sum().backward()
    assert q.grad is not None
    assert (q.grad[0, 2:] < 0).all()  # descending raises the tail
    agreeing = torch.tensor([[0.4, 0.3, 0.05, 0.25]]).log()
    assert divergence("forward_kl", *top_rows(p, 2).pair(agreeing)).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_chunks_of_the_most_probable_tokens(kind):
    hidden, labels = torch.randn(23, 6), torch.randint(11, (23,))
    head = torch.nn.Linear(6, 11, bias=False)
    top = top_rows(torch.randn(23, 11).log_softmax(-1), 3)
    whole, chunked = (row_losses(hidden, labels, head, top, kind, 0.5, 11, size).loss_R for size in (10**6, 44))
    torch.testing.assert_close(chunked, whole)


def test_few_logits_are_held_at_once():
    """The widest tensor that the head makes has as many rows as a chunk, in both directions."""
    heights = []

    def head(hidden_RD):
        heights.append(len(hidden_RD))
        return hidden_RD @ weight

    weight, hidden = torch.randn(6, 100, requires_grad=True), torch.randn(50, 6, requires_grad=True)
    rows = row_losses(hidden, torch.zeros(50, dtype=torch.long), head, None, "cross_entropy", 0, 100, 700)
    rows.loss_R.sum().backward()
    assert max(heights) == 7
    assert sum(heights) == 100  # every row once for its loss and once more for its gradient


class TensorSizes(TorchDispatchMode):
    """Remembers the largest tensor that any operation makes, and how many elements autograd keeps at most."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.numel())
        return result


@pytest.mark.parametrize("kind", ["cross_entropy", *DIVERGENCES])
@pytest.mark.parametrize("source", ["full", "top"])
def test_rows_times_vocabulary_never_exist(kind, source):
    """Neither in the loss nor in its gradient, nor among what is kept between the two."""
    num_rows, vocab_size, chunk_logits = 64, 500, 2000
    hidden = torch.randn(num_rows, 6, requires_grad=True)
    head, target_head = (torch.nn.Linear(6, vocab_size, bias=False) for _ in range(2))
    target = FullRows(torch.randn(num_rows, 6), target_head)
    if source == "top":
        target = top_rows(target.logprobs_RV(vocab_size), 3)
    kept = []
    with (
        TensorSizes() as sizes,
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t),
    ):
        labels = torch.randint(vocab_size, (num_rows,))
        rows = row_losses(hidden, labels, head, target, kind, 0.5, vocab_size, chunk_logits)
        kept_between = sum(kept)
        rows.loss_R.sum().backward()
    assert head.weight.grad is not None
    largest_allowed = max(chunk_logits, head.weight.numel())
    assert sizes.largest <= largest_allowed < num_rows * vocab_size
    assert kept_between < num_rows * vocab_size


def test_weights_by_position():
    label_logprob = logprobs([0.5, 0.5, 0.25], [1.0, 0.1, 0.9])
    assert position_weights("uniform", label_logprob, 2.0).tolist() == [[1, 1, 1], [1, 1, 1]]
    exponential = position_weights("exponential", label_logprob, 2.0)
    assert exponential[1].tolist() == pytest.approx([1, math.exp(-0.5), math.exp(-1)])
    survival = position_weights("survival", label_logprob.requires_grad_(), 2.0)
    assert survival[0].tolist() == pytest.approx([1, 0.5, 0.25])
    assert survival[1].tolist() == pytest.approx([1, 1.0, 0.1])
    assert not survival.requires_grad


def test_weighted_mean():
    loss = torch.tensor([1.0, 3.0, 100.0])
    assert weighted_mean(loss, torch.tensor([1.0, 3.0, 0.0])) == 2.5
    assert weighted_mean(loss, torch.zeros(3)) == 0


def test_weighted_means_of_parts_average_to_the_mean_of_the_whole():
    loss, weight = torch.randn(7), torch.rand(7)
    shares = [weighted_mean(loss[part], weight[part], weight.sum() / 2) for part in (slice(0, 3), slice(3, 7))]
    torch.testing.assert_close(torch.stack(shares).mean(), weighted_mean(loss, weight))


@pytest.mark.parametrize("slice_logits", [1, 12, 1000])
@pytest.mark.parametrize("cross_entropy_weight", [0.0, 0.3])
def test_the_fused_divergence_is_the_plain_one(slice_logits, cross_entropy_weight, monkeypatch):
    """Values and gradients, for rows in slices and a drafter with more tokens than its target."""
    monkeypatch.setattr(FullForwardKL, "slice_logits", slice_logits)
    generator = torch.Generator().manual_seed(0)
    logits_RW = torch.randn((5, 8), generator=generator, requires_grad=True)
    target_logits_RV = torch.randn((5, 6), generator=generator)
    labels_R = torch.tensor([0, 5, 2, 2, 1])
    loss_R, label_logprob_R = FullForwardKL.apply(logits_RW.clone(), target_logits_RV, labels_R, cross_entropy_weight)
    logprobs_RV = logits_RW[:, :6].log_softmax(-1)
    plain_R = divergence("forward_kl", logprobs_RV, target_logits_RV.log_softmax(-1))
    plain_R = plain_R + cross_entropy_weight * cross_entropy(logprobs_RV, labels_R)
    torch.testing.assert_close(loss_R, plain_R)
    torch.testing.assert_close(label_logprob_R, -cross_entropy(logprobs_RV, labels_R))
    slopes_R = torch.randn(5, generator=generator)
    (own,) = torch.autograd.grad(loss_R, logits_RW, slopes_R)
    (plain,) = torch.autograd.grad(plain_R, logits_RW, slopes_R)
    torch.testing.assert_close(own, plain)
