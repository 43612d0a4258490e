import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from tests.conftest import make_model
from workbench.drafter.attention import attend_by_block, choose_attention
from workbench.drafter.blocks import BlockBatch, BlockPass, hidden_rows, lay_out
from workbench.drafter.flex import attend_by_flex, block_mask
from workbench.drafter.model import DrafterSpec
from workbench.drafter.visibility import PADDING, Rows, block_rows, clean_rows, visible_mask
from workbench.errors import WorkbenchError

SPEC = DrafterSpec(
    block_size=4,
    mask_token_id=36,
    block_attention="bidirectional",
    target="tiny",
    target_revision=None,
    target_fingerprint="",
    template_hash="",
    thinking=False,
    vocab_size=36,
    kept_layers=[0, 1, 2],
    parent="tiny",
    parent_num_layers=3,
)
MODEL = make_model()
SOME_BLOCK_MASK = block_mask(Rows(*(torch.zeros(1, 2, dtype=torch.long) for _ in range(3))), False)


def dense_rows(block_pass: BlockPass) -> torch.Tensor:
    """The same pass with one mask over all pairs of rows, through the model's own attention."""
    return MODEL.base_model(
        input_ids=block_pass.input_ids_BR,
        attention_mask=block_pass.visible_B1RR,
        position_ids=block_pass.position_ids_BR,
    ).last_hidden_state


@settings(max_examples=20, deadline=None)
@given(data=st.data(), attention=st.sampled_from(["bidirectional", "causal"]))
def test_both_attentions_equal_one_dense_mask(data: st.DataObject, attention):
    num_sequences, num_blocks, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)), 12
    lengths = data.draw(st.lists(st.integers(4, width), min_size=num_sequences, max_size=num_sequences))
    starts = [[data.draw(st.integers(-1, length - 2)) for _ in range(num_blocks)] for length in lengths]
    batch = BlockBatch(
        tokens_BT=torch.randint(36, (num_sequences, width), generator=torch.Generator().manual_seed(0)),
        prompt_lengths_B=torch.ones(num_sequences, dtype=torch.long),
        lengths_B=torch.tensor(lengths),
        starts_BA=torch.tensor(starts),
        masks_anchor_BA=torch.tensor([[block % 2 == 0 for block in range(num_blocks)]] * num_sequences),
        samples_B=torch.arange(num_sequences),
    )
    block_pass = lay_out(batch, dataclasses.replace(SPEC, block_attention=attention))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # FlexAttention runs uncompiled on tiny shapes
        dense_BRD = dense_rows(block_pass)
        for kind in ("blocks", "flex"):
            clean_BTD, blocks_BALD = hidden_rows(MODEL, block_pass, kind)
            rows_BRD = torch.cat([clean_BTD, blocks_BALD.flatten(1, 2)], 1)
            torch.testing.assert_close(rows_BRD, dense_BRD, atol=2e-5, rtol=1e-4)


def test_the_model_attends_as_before_afterwards():
    batch = BlockBatch(
        tokens_BT=torch.tensor([[3, 4, 5, 6]]),
        prompt_lengths_B=torch.tensor([1]),
        lengths_B=torch.tensor([4]),
        starts_BA=torch.tensor([[1]]),
        masks_anchor_BA=torch.tensor([[False]]),
        samples_B=torch.tensor([0]),
    )
    before = MODEL.config._attn_implementation
    hidden_rows(MODEL, lay_out(batch, SPEC))
    assert MODEL.config._attn_implementation == before


def test_attention_with_more_than_a_softmax_is_refused():
    rows = torch.zeros(1, 1, 2, 4)
    with pytest.raises(WorkbenchError, match="softcap"):
        attend_by_block(MODEL, rows, rows, rows, None, block_bias=(rows, rows), scaling=1.0, softcap=30.0)
    with pytest.raises(WorkbenchError, match="softcap"):
        attend_by_flex(MODEL, rows, rows, rows, SOME_BLOCK_MASK, scaling=1.0, softcap=30.0)


def test_attention_follows_the_device():
    assert choose_attention("auto", torch.device("cpu")) == "blocks"
    assert choose_attention("auto", torch.device("cuda")) == "flex"
    assert choose_attention("blocks", torch.device("cuda")) == "blocks"


def long_rows() -> Rows:
    """Two sequences of several tiles of 128 rows, the second one with padding and an absent block."""
    clean = clean_rows(0, 300)
    block = torch.stack([clean.block, torch.where(clean.position < 150, clean.block, PADDING)])
    clean = Rows(clean.position.expand(2, -1), block, clean.block_start.expand(2, -1))
    starts = torch.stack([torch.arange(10, 290, 7), torch.arange(10, 150).expand(1, -1)[0, :40]])
    starts[1, -1] = -1
    return Rows.concatenate([clean, block_rows(starts, 9)])


@pytest.mark.parametrize("causal_blocks", [False, True])
def test_the_block_mask_is_the_dense_mask(causal_blocks):
    rows = long_rows()
    num_rows = rows.position.shape[1]
    dense_BRR = visible_mask(rows, rows, causal_blocks)
    mask = block_mask(rows, causal_blocks)
    assert torch.equal(create_mask(mask.mask_mod, 2, 1, num_rows, num_rows, device="cpu")[:, 0], dense_BRR)
    num_tiles = -(-num_rows // 128)
    padding = (0, 128 * num_tiles - num_rows)
    tiles = torch.nn.functional.pad(dense_BRR, padding + padding).unflatten(1, (-1, 128)).unflatten(3, (-1, 128))
    assert torch.equal(mask.to_dense()[:, 0].bool(), tiles.any(4).any(2))
    assert mask.sparsity() > 20  # per cent of tiles that are skipped
