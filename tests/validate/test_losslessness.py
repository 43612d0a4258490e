import pytest
import torch

from tests.conftest import make_target
from workbench.validate import losslessness
from workbench.validate.losslessness import check_rounds, compare_outputs, measure_logit_gap

STOP = frozenset({0})
REFERENCE = [5, 6, 7, 8, 9, 10, 11, 0]


def verdict_of(emitted, gap=3.0, max_new_tokens=8, reference=REFERENCE):
    return compare_outputs(emitted, reference, STOP, max_new_tokens, lambda position: gap, tolerance=1e-4)


def test_equal_outputs_are_identical():
    assert verdict_of(REFERENCE).status == "identical"


@pytest.mark.parametrize(
    ("emitted", "kind", "position"),
    [
        ([5, 6, 7, 99, 9, 10, 11, 0], "emits a token that the target would not", 3),
        ([5, 6, 8, 9, 10, 11, 0], "loses a token", 2),
        ([5, 6, 6, 7, 8, 9, 10, 11], "doubles a token", 2),
        ([5, 6, 7, 8, 9, 10, 11, 0, 3, 4], "overshoots max_new_tokens", 8),
        ([5, 6, 7, 8, 9], "ends early", 5),
    ],
)
def test_each_bug_has_its_own_name(emitted, kind, position):
    verdict = verdict_of(emitted)
    assert (verdict.status, verdict.kind, verdict.position) == ("different", kind, position)
    assert verdict.message


def test_tokens_behind_the_stop_token():
    verdict = verdict_of([*REFERENCE, 3], max_new_tokens=20)
    assert verdict.kind == "continues after EOS"
    assert verdict.position == len(REFERENCE)


def test_an_output_without_the_stop_token_that_plain_decoding_ended_with():
    assert verdict_of([5, 6, 7, 8, 9], reference=[5, 6, 7], max_new_tokens=20).kind == "does not end"


@pytest.mark.parametrize("gap", [5e-5, -5e-5])
def test_two_tokens_that_the_target_cannot_tell_apart_are_a_tie(gap):
    verdict = verdict_of([5, 6, 7, 99, 9], gap=gap)
    assert (verdict.status, verdict.position, verdict.logit_gap) == ("tie", 3, gap)


def test_an_early_end_is_no_tie_however_close_the_logits():
    assert verdict_of([5, 6, 7], gap=0.0).status == "different"


def rounds(*pairs, draft_length=4):
    return [{"num_accepted": a, "num_emitted": e, "draft_length": draft_length} for a, e in pairs]


@pytest.mark.parametrize(
    ("entries", "num_tokens", "kind"),
    [
        (rounds((2, 3), (2, 2), (4, 5)), 11, "drops the bonus token"),
        (rounds((2, 4), (4, 5)), 10, "accepts too many tokens"),
        (rounds((5, 6)), 7, "accepts too many tokens"),
        (rounds((2, 3), (0, 1)), 9, "counts tokens wrongly"),
    ],
)
def test_rounds_that_do_not_add_up(entries, num_tokens, kind):
    verdict = check_rounds(entries, num_tokens)
    assert verdict is not None
    assert verdict.kind == kind


def test_rounds_that_add_up_and_a_last_round_that_was_cut():
    assert check_rounds(rounds((2, 3), (4, 2)), 6) is None
    assert check_rounds([], 1) is None


PROMPT, OUTPUT = [3, 4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14, 15]


def test_the_logit_gap_is_that_of_the_target_behind_the_shared_prefix():
    target = make_target()
    for position in (0, 1, 7):
        reference, emitted = [*OUTPUT[:position], 20], [*OUTPUT[:position], 21]
        prefix = torch.tensor([[*PROMPT, *OUTPUT[:position]]])
        with torch.no_grad():
            logits_V = target.model(prefix).logits[0, -1]
        expected = float(logits_V[20] - logits_V[21])
        assert abs(expected) > losslessness.tie_tolerance(torch.float32)
        assert measure_logit_gap(target, PROMPT, reference, emitted, position) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 20])
def test_passes_of_any_size_see_the_same_prefix(num_rows):
    target = make_target()
    engine = losslessness.Engine(target.model, 20)
    prefix = PROMPT + OUTPUT
    whole = losslessness._gap_in_passes(engine, prefix, 0, len(prefix), (20, 21))
    assert losslessness._gap_in_passes(engine, prefix, len(PROMPT), num_rows, (20, 21)) == pytest.approx(
        whole, abs=1e-5
    )


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([0.1], 0.1),  # Undecided at once: no other pass is run.
        ([0.6, 0.5, -0.05], 0.0),
        ([0.6, 0.7, 0.2], 0.2),
        ([-0.6, -0.5, -0.2], -0.2),
        ([0.6] * 11, 0.6),
        ([-0.9, *[-0.7] * 10], -0.7),
    ],
)
def test_in_16_bits_passes_of_other_sizes_may_leave_a_choice_open(monkeypatch, gaps, expected):
    target = make_target()
    target.model.bfloat16()
    asked = iter(gaps)
    monkeypatch.setattr(losslessness, "_gap_in_passes", lambda *_: next(asked))
    assert measure_logit_gap(target, PROMPT, OUTPUT, [99], 0) == expected
    assert next(asked, None) is None, "passes are run until one leaves the choice open"
