import dataclasses
from typing import Any

import pytest
import torch

from workbench.drafter.blocks import (
    ABSENT,
    UNSUPERVISED,
    WIDTH_STEP,
    BlockBatch,
    draw_starts,
    hidden_rows,
    lay_out,
    stack_sequences,
)
from workbench.drafter.layers import build_drafter
from workbench.drafter.model import DrafterSpec
from workbench.recipe import load_recipe

MASK = 60


@pytest.fixture
def drafter(make_target):
    drafter = build_drafter(make_target(), load_recipe("quickstart"))
    drafter.spec = make_spec()
    return drafter


def make_spec(attention: Any = "bidirectional", block_size=4) -> DrafterSpec:
    return DrafterSpec(
        block_size=block_size,
        mask_token_id=MASK,
        block_attention=attention,
        target="tiny",
        target_revision=None,
        target_fingerprint="",
        template_hash="",
        thinking=False,
        vocab_size=60,
        kept_layers=[0],
        parent="tiny",
        parent_num_layers=1,
    )


def make_batch(prompts, responses, starts, masked) -> BlockBatch:
    tokens_BT, prompt_lengths_B, lengths_B = stack_sequences(prompts, responses)
    return BlockBatch(
        tokens_BT=tokens_BT,
        prompt_lengths_B=prompt_lengths_B,
        lengths_B=lengths_B,
        starts_BA=torch.tensor(starts),
        masks_anchor_BA=torch.tensor(masked),
        samples_B=torch.arange(len(prompts)),
    )


def test_rows_of_a_toy_batch():
    batch = make_batch(
        [[11, 12], [21]],
        [[13, 14, 15, 16], [22, 23]],
        starts=[[2, 4], [1, ABSENT]],
        masked=[[False, True], [False, False]],
    )
    block_pass = lay_out(batch, make_spec(block_size=3))
    assert block_pass.num_clean == WIDTH_STEP
    padding = WIDTH_STEP - 6
    blocks = [13, MASK, MASK, MASK, MASK, MASK]
    assert block_pass.input_ids_BR[0].tolist() == [11, 12, 13, 14, 15, 16, *[0] * padding, *blocks]
    assert block_pass.position_ids_BR[0].tolist() == [*range(WIDTH_STEP), 2, 3, 4, 4, 5, 6]
    assert block_pass.labels_BAL[0].tolist() == [[14, 15, 16], [16, UNSUPERVISED, UNSUPERVISED]]
    assert block_pass.input_ids_BR[1, WIDTH_STEP : WIDTH_STEP + 3].tolist() == [22, MASK, MASK]
    assert block_pass.labels_BAL[1].tolist() == [[23, UNSUPERVISED, UNSUPERVISED], [UNSUPERVISED] * 3]


def test_the_stop_token_is_supervised_and_nothing_after_it():
    response = [13, 14, 0, 1]  # 0 is what sequences are padded with: a token like any other inside a response
    batch = make_batch([[11, 12], [11] * 20], [response, [12] * 20], starts=[[2], [30]], masked=[[False], [False]])
    labels = lay_out(batch, make_spec(block_size=6)).labels_BAL
    assert labels[0, 0].tolist() == [14, 0, 1, UNSUPERVISED, UNSUPERVISED, UNSUPERVISED]


def test_starts_lie_inside_the_response_and_are_distinct():
    prompt_lengths, lengths = torch.tensor([3, 5, 4]), torch.tensor([14, 8, 5])
    generator = torch.Generator().manual_seed(0)
    seen = [set(), set(), set()]
    for _ in range(200):
        starts = draw_starts(prompt_lengths, lengths, 6, generator)
        assert starts.shape == (3, 6)
        for row, places in zip(starts.tolist(), seen, strict=True):
            there = [start for start in row if start != ABSENT]
            assert len(set(there)) == len(there)
            places.update(there)
    # The first response token to the last but one: each has at least one token after it.
    assert seen == [set(range(3, 13)), {5, 6}, set()]


@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_no_block_row_changes_when_a_later_or_hidden_token_changes(drafter, attention):
    drafter.spec = make_spec(attention)
    drafter.model.eval()
    prompt, response = [2, 3, 4], list(range(20, 32))
    starts = [[3, 5, 8, 8, 13]]
    masked = [[False, True, False, True, False]]
    with torch.no_grad():
        before = hidden_rows(drafter.model, lay_out(make_batch([prompt], [response], starts, masked), drafter.spec))
        for position in range(len(prompt) + len(response)):
            changed = prompt + response
            changed[position] = 50
            batch = make_batch([changed[:3]], [changed[3:]], starts, masked)
            after = hidden_rows(drafter.model, lay_out(batch, drafter.spec))
            assert torch.equal(after[0][0, :position], before[0][0, :position])
            for index, (start, is_masked) in enumerate(zip(starts[0], masked[0], strict=True)):
                is_hidden = position > start or (position == start and is_masked)
                same = torch.equal(after[1][0, index], before[1][0, index])
                assert same == is_hidden, f"block at {start} and token {position}"


def test_blocks_do_not_depend_on_other_blocks_or_on_padding(drafter):
    drafter.model.eval()
    prompt, response = [2, 3, 4], list(range(20, 32))
    together = make_batch(
        [prompt, [5] * 9], [response, [6] * 30], [[3, 7, 9], [12, 20, ABSENT]], [[False, True, False]] * 2
    )
    alone = make_batch([prompt], [response], [[7]], [[True]])
    with torch.no_grad():
        _, blocks = hidden_rows(drafter.model, lay_out(together, drafter.spec))
        _, block = hidden_rows(drafter.model, lay_out(alone, drafter.spec))
    assert torch.isfinite(blocks).all()
    torch.testing.assert_close(blocks[0, 1], block[0, 0])


def test_clean_rows_are_those_of_the_plain_model(drafter):
    drafter.model.eval()
    tokens = [2, 3, 4, 20, 21, 22]
    batch = make_batch([tokens[:3]], [tokens[3:]], [[3, 4]], [[False, True]])
    with torch.no_grad():
        clean, _ = hidden_rows(drafter.model, lay_out(batch, drafter.spec))
        plain = drafter.model.base_model(input_ids=torch.tensor([tokens])).last_hidden_state
    torch.testing.assert_close(clean[:, :6], plain)


def test_a_block_equals_a_draft_pass_over_the_committed_tokens(drafter):
    """What a decoder does: committed tokens before the anchor cached, then the block's rows over that cache."""
    drafter.model.eval()
    tokens = [2, 3, 4, *range(20, 30)]
    batch = make_batch([tokens[:3]], [tokens[3:]], [[3, 6]], [[False, False]])
    size = drafter.spec.block_size
    with torch.no_grad():
        _, blocks = hidden_rows(drafter.model, lay_out(batch, drafter.spec))
        cached = drafter.model.base_model(input_ids=torch.tensor([tokens[:6]]), use_cache=True)
        draft = drafter.model.base_model(
            input_ids=torch.tensor([[tokens[6], *[MASK] * (size - 1)]]),
            position_ids=torch.arange(6, 6 + size)[None],
            attention_mask=torch.ones(1, 1, size, 6 + size, dtype=torch.bool),
            past_key_values=cached.past_key_values,
        )
    torch.testing.assert_close(blocks[0, 1], draft.last_hidden_state[0], atol=1e-5, rtol=1e-4)


def test_a_batch_moves_as_a_whole():
    batch = make_batch([[1]], [[2, 3]], [[1]], [[False]])
    moved = batch.to("meta")
    assert all(getattr(moved, field.name).device.type == "meta" for field in dataclasses.fields(moved))
