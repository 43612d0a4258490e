import pytest

from workbench.validate.losslessness import check_rounds, compare_outputs

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
