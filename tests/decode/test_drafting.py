"""Packed passes equal one pass per hypothesis, whatever was committed before."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import make_model, make_spec
from workbench.decode.calibration import default_calibration
from workbench.decode.drafting import BlockDrafter
from workbench.decode.engine import Engine
from workbench.decode.hypotheses import RoundCosts

COSTS = RoundCosts(verify_s=1, draft_s=1, packed_base_s=0, packed_block_s=0)
MASK = 36


def block_drafter(target, attention="bidirectional", max_blocks=6, model=None):
    spec = make_spec(target, block_attention=attention, block_size=5)
    engine = Engine(model or make_model(seed=3), 256)
    return BlockDrafter(engine, spec, 4, max_blocks, COSTS, default_calibration(4), frozenset({1}))


def reference_logits(model, clean, anchor, block_size, causal):
    """One hypothesis, no cache: clean rows causal, the block behind them with a mask written out by hand."""
    ids = [*clean, MASK if anchor is None else anchor, *[MASK] * (block_size - 1)]
    visible = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    if not causal:
        visible[len(clean) :, len(clean) :] = True
    with torch.inference_mode():
        output = model(torch.tensor([ids]), attention_mask=visible[None, None])
    return output.logits[0, len(clean) :, :MASK]


@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_every_hypothesis_is_drafted_as_if_it_were_known(tiny_target, attention, data):
    drafter = block_drafter(tiny_target, attention)
    token = st.integers(4, 35)
    committed = data.draw(st.lists(token, min_size=1, max_size=12))
    drafter.start(committed, 0, None, ahead=data.draw(st.booleans()))
    for _ in range(data.draw(st.integers(1, 4))):
        previous = drafter._last_draft.token_ids
        accepted = previous[: data.draw(st.integers(0, len(previous)))]
        emitted = [*accepted, data.draw(token)]
        before = {h: list(d.token_ids) for h, d in drafter._ahead.items()}
        for hypothesis, tokens in before.items():
            clean = committed + previous[: hypothesis.num_accepted]
            # The masked anchor stands where the bonus will stand.
            logits = reference_logits(drafter.engine.model, clean, hypothesis.bonus, 5, attention == "causal")
            assert tokens == logits[:4].argmax(-1).tolist()
        drafter.commit(emitted)
        committed = committed + emitted
        draft = drafter.draft()
        if not draft.outcome.startswith("hit"):
            logits = reference_logits(drafter.engine.model, committed[:-1], committed[-1], 5, attention == "causal")
            assert draft.token_ids == logits[:4].argmax(-1).tolist()
        if data.draw(st.booleans()):
            drafter.choose(100)
            drafter.prepare()


def test_the_cache_holds_clean_rows_only(tiny_target):
    drafter = block_drafter(tiny_target)
    drafter.start([5, 6, 7], 0, None, ahead=True)
    assert drafter.cache.length == 3
    drafter.commit([8])
    draft = drafter.draft()
    drafter.choose(100)
    assert draft.num_ahead
    drafter.prepare()
    assert drafter.cache.length == 3 + 1 + len(draft.token_ids)
    drafter.commit([*draft.token_ids[:2], 9])
    assert drafter.cache.length == 3 + 1 + 2


def test_masks_and_padded_rows_are_never_proposed(tiny_target):
    model = make_model(seed=3)
    with torch.no_grad():
        model.lm_head.weight[MASK:] *= 50
    drafter = block_drafter(tiny_target, model=model)
    drafter.start([5, 6, 7], 0, None, ahead=True)
    drafter.commit([8])
    draft = drafter.draft()
    assert max(draft.token_ids) < MASK
    assert max(max(ids) for ids in draft.bonus_ids) < MASK


def test_rejected_draft_token_is_no_candidate_for_the_bonus(tiny_target):
    drafter = block_drafter(tiny_target)
    drafter.start([5, 6, 7], 0, None, ahead=True)
    drafter.commit([8])
    draft = drafter.draft()
    for position, token in enumerate(draft.token_ids):
        assert token not in draft.bonus_ids[position]
        assert draft.bonus_ids[position]


def test_lengths_come_from_the_calibration(tiny_target):
    calibration = dataclasses.replace(default_calibration(4), anchored_length=3.5, masked_length=2.5)
    drafter = BlockDrafter(
        Engine(make_model(seed=3), 64), make_spec(tiny_target), 4, 2, COSTS, calibration, frozenset()
    )
    assert (drafter.costs.anchored_length, drafter.costs.masked_length) == (3.5, 2.5)


@pytest.mark.parametrize("slowdown", [0.0, 1e6])
def test_now_and_then_the_other_thing_is_done_so_that_the_slowdown_shows(tiny_target, slowdown):
    drafter = block_drafter(tiny_target)
    drafter.costs = dataclasses.replace(drafter.costs, slowdown=slowdown)
    drafter.start([5, 6, 7], 0, None, ahead=False)
    is_packed = []
    for _ in range(12):
        drafter.commit([8])
        draft = drafter.draft()
        drafter.choose(100)
        is_packed.append(draft.num_ahead > 0)
    usual = slowdown == 0
    assert is_packed == [usual] * 7 + [not usual] + [usual] * 4
