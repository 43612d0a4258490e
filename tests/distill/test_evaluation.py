from types import SimpleNamespace

import datasets
import torch

from tests.conftest import make_model, make_spec
from workbench.distill.evaluation import draw_evaluation_blocks, score_blocks
from workbench.drafter.model import Drafter


class Oracle(torch.nn.Module):
    """Stands in for a model: its hidden state is the position, its head knows each position's next token."""

    def __init__(self, next_token):
        super().__init__()
        self.next_token = next_token
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.config = SimpleNamespace(_attn_implementation="sdpa")

    def forward(self, position_ids, **inputs):
        return type("Output", (), {"last_hidden_state": position_ids[..., None].float()})

    @property
    def base_model(self):
        return self

    def get_output_embeddings(self):
        return lambda hidden: torch.nn.functional.one_hot(self.next_token[hidden[:, 0].long()], 40).float()


def test_blocks_are_the_same_for_the_same_seed(corpus):
    first, again, other = (draw_evaluation_blocks(corpus.held_out, 40, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a.starts_BA, b.starts_BA) for a, b in zip(first.batches, again.batches, strict=True))
    assert not all(torch.equal(a.starts_BA, b.starts_BA) for a, b in zip(first.batches, other.batches, strict=True))


def test_every_start_is_scored_with_a_known_and_a_masked_anchor(corpus, tiny_target):
    blocks = draw_evaluation_blocks(corpus.held_out, 40, 0)
    drafter = Drafter(make_model(vocab_rows=40, seed=3), make_spec(tiny_target))
    scores = score_blocks(drafter, blocks, 8)
    assert blocks.num_blocks == len(scores) == len(blocks.is_masked) == 80
    assert blocks.is_masked.sum() == 40
    assert ((scores >= 1) & (scores <= 9)).all()


def test_scores_count_the_matching_prefix_and_the_bonus(tiny_target):
    response = [10, 11, 12, 13, 14, 15, 16, 17, 18, 1]  # at positions 2 to 11
    samples = datasets.Dataset.from_list([{"prompt_ids": [5, 6], "response_ids": response}])
    blocks = draw_evaluation_blocks(samples, 9, 0, starts_per_sequence=9)
    next_token = torch.tensor([6, *response, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])  # by position
    next_token[6] = 30  # wrong about the token at position 7
    starts = blocks.batches[0].starts_BA[0, :9].tolist()
    scores = score_blocks(Drafter(Oracle(next_token), make_spec(tiny_target)), blocks, 8)
    expected = {2: 5, 3: 4, 4: 3, 5: 2, 6: 1, 7: 5, 8: 4, 9: 3, 10: 2}
    assert dict(zip(starts, scores[:9].tolist(), strict=True)) == expected


def test_a_draft_length_caps_the_score(corpus, tiny_target):
    blocks = draw_evaluation_blocks(corpus.held_out, 40, 0)
    drafter = Drafter(make_model(vocab_rows=40, seed=3), make_spec(tiny_target))
    assert torch.equal(score_blocks(drafter, blocks, 2), score_blocks(drafter, blocks, 8).clamp_max(3))


def test_the_mask_is_never_taken_for_a_proposal(corpus, tiny_target):
    """A drafter that favours the mask everywhere is judged by its best proper token."""
    blocks = draw_evaluation_blocks(corpus.held_out, 40, 0)
    drafter = Drafter(make_model(vocab_rows=40, seed=3), make_spec(tiny_target))
    before = score_blocks(drafter, blocks, 8)
    head = torch.nn.Linear(32, 40)
    head.weight.data.copy_(drafter.model.get_output_embeddings().weight)
    head.bias.data.zero_()
    head.bias.data[36:] = 1e6
    drafter.model.set_output_embeddings(head)
    assert torch.equal(score_blocks(drafter, blocks, 8), before)


def test_rows_are_taken_in_turns(corpus, tiny_target, monkeypatch):
    blocks = draw_evaluation_blocks(corpus.held_out, 40, 0)
    drafter = Drafter(make_model(vocab_rows=40, seed=3), make_spec(tiny_target))
    at_once = score_blocks(drafter, blocks, 8)
    monkeypatch.setattr("workbench.distill.evaluation.CHUNK_LOGITS", 7 * 36)
    assert torch.equal(score_blocks(drafter, blocks, 8), at_once)
