"""Losslessness of all methods on tiny models: every executor, draft length, hit and miss, stop and limit."""

import dataclasses
import functools

import pytest
import torch

from tests.conftest import make_drafter_folder, make_model, make_target
from workbench.decode import build_decoder
from workbench.decode.hypotheses import Hypothesis, RoundCosts
from workbench.errors import WorkbenchError
from workbench.recipe import DecodeOptions


class FixedCosts(RoundCosts):
    """Costs that rounds do not change: what is drafted ahead does not depend on the machine."""

    def after_verification(self, seconds, num_blocks, is_change):
        return self

    def after_draft(self, seconds):
        return self

    def after_packed(self, num_blocks, seconds):
        return self

    def is_comparison_due(self, num_choices):
        return False


FREE = FixedCosts(verify_s=1.0, draft_s=1.0, packed_base_s=0.0, packed_block_s=0.0)
PROMPTS = [[2, 7, 9, 30, 3], [2, 11, 3], [2, *range(4, 30), 3]]


def plain_greedy(target, prompt_ids, max_new_tokens):
    """Reference: no cache, stock forward, one token at a time."""
    return list(_plain_greedy(target, tuple(prompt_ids), 40)[:max_new_tokens])


@functools.cache
def _plain_greedy(target, prompt_ids, max_new_tokens):
    ids = list(prompt_ids)
    with torch.inference_mode():
        for _ in range(max_new_tokens):
            ids.append(int(target.model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in target.stop_ids:
                break
    return tuple(ids[len(prompt_ids) :])


def options(**changes) -> DecodeOptions:
    return dataclasses.replace(DecodeOptions(executor="inline", target_threads=1, drafter_threads=1), **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_target):
    return make_drafter_folder(tmp_path_factory.mktemp("drafter"), tiny_target, block_size=17)


@pytest.mark.parametrize("method", ["autoregressive", "synchronous", "asynchronous"])
@pytest.mark.parametrize("draft_length", [2, 4, 8, 16])
@pytest.mark.parametrize("max_hypotheses", [0, 3, 17])
def test_greedy_equals_plain_decoding(tiny_target, folder, method, draft_length, max_hypotheses):
    chosen = options(draft_length=draft_length, max_hypotheses=max_hypotheses)
    with build_decoder(method, tiny_target, folder, chosen, costs=FREE) as decoder:
        for prompt in PROMPTS:
            generation = decoder.generate(prompt, 40)
            assert generation.token_ids == plain_greedy(tiny_target, prompt, 40)
            assert len(generation.statistics.emit_times_s) == len(generation.token_ids)
            assert sum(r.num_emitted for r in generation.statistics.rounds) == len(generation.token_ids) - 1


def test_covering_every_outcome_always_hits_and_covering_none_never_does(tiny_target, folder):
    with build_decoder("asynchronous", tiny_target, folder, options(max_hypotheses=9), costs=FREE) as decoder:
        outcomes = [r.outcome for p in PROMPTS for r in decoder.generate(p, 40).statistics.rounds]
    assert outcomes
    # A draft with a stop token in it has no outcome behind that token, and nothing follows it either.
    assert all(outcome.startswith("hit") for outcome in outcomes)
    with build_decoder("asynchronous", tiny_target, folder, options(max_hypotheses=0), costs=FREE) as decoder:
        outcomes = [r.outcome for p in PROMPTS for r in decoder.generate(p, 40).statistics.rounds]
    assert set(outcomes) == {"none"}


def test_missed_rounds_draft_what_synchronous_decoding_drafts(tiny_target, folder, monkeypatch):
    """With hypotheses that never come true, every draft is a draft pass: rounds equal the synchronous ones."""
    monkeypatch.setattr(
        "workbench.decode.drafting.select_hypotheses", lambda *_: [Hypothesis(0, tiny_target.config.vocab_size + 5)]
    )
    monkeypatch.setattr(
        "workbench.decode.drafting.BlockDrafter._run", _without_impossible(tiny_target.config.vocab_size)
    )
    for prompt in PROMPTS:
        counts = {}
        for method in ("synchronous", "asynchronous"):
            with build_decoder(method, tiny_target, folder, options(max_hypotheses=1), costs=FREE) as decoder:
                rounds = decoder.generate(prompt, 40).statistics.rounds
            counts[method] = [r.num_accepted for r in rounds]
        # The first asynchronous block is drafted behind the prompt, before the first token is known.
        assert (
            counts["asynchronous"][1:] == counts["synchronous"][1:]
            or counts["asynchronous"][0] != (counts["synchronous"][0])
        )


def _without_impossible(vocab_rows):
    from workbench.decode.drafting import BlockDrafter

    original = BlockDrafter._run

    def run(self, clean, blocks):
        return original(self, clean, [(o, a if a is None or a < vocab_rows else 0) for o, a in blocks])

    return run


@pytest.mark.parametrize("max_new_tokens", range(1, 14))
@pytest.mark.parametrize("method", ["synchronous", "asynchronous"])
def test_the_length_limit_is_never_overshot(tiny_target, folder, method, max_new_tokens):
    with build_decoder(method, tiny_target, folder, options(), costs=FREE) as decoder:
        generation = decoder.generate(PROMPTS[0], max_new_tokens)
    assert generation.token_ids == plain_greedy(tiny_target, PROMPTS[0], max_new_tokens)


@pytest.mark.parametrize("method", ["autoregressive", "synchronous", "asynchronous"])
def test_a_stop_token_ends_the_output_at_every_position(tiny_target, folder, method):
    """Every token of the output is made the stop token in turn, so it falls on every place of a block."""
    full = plain_greedy(tiny_target, PROMPTS[1], 30)
    with build_decoder(method, tiny_target, folder, options(), costs=FREE) as decoder:
        for position, token in enumerate(full):
            if token in full[:position]:
                continue
            for limit in (position, position + 1, position + 2, 30):
                if limit == 0:
                    continue
                generation = decoder.generate(PROMPTS[1], limit, stop=[token])
                assert generation.token_ids == full[: min(limit, position + 1)]
                assert generation.stop_reason == ("stop" if limit > position else "length")


@pytest.mark.parametrize("method", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("block_attention", ["bidirectional", "causal"])
def test_sample_match_emits_what_autoregressive_sampling_emits(tmp_path, method, kind, block_attention):
    target = make_target(kind)
    folder = make_drafter_folder(tmp_path, target, make_model(kind), block_attention=block_attention)
    chosen = options(temperature=0.8, top_p=0.95, top_k=20)
    with (
        build_decoder("autoregressive", target, None, chosen) as plain,
        build_decoder(method, target, folder, chosen, costs=FREE) as decoder,
    ):
        for seed, prompt in enumerate(PROMPTS):
            assert decoder.generate(prompt, 30, seed=seed).token_ids == plain.generate(prompt, 30, seed=seed).token_ids


def test_executors_emit_the_same_tokens_under_rejection(tiny_target, folder):
    chosen = options(temperature=1.0, acceptance="rejection")
    outputs = {}
    for executor in ("inline", "worker"):
        changed = dataclasses.replace(chosen, executor=executor)
        with build_decoder("asynchronous", tiny_target, folder, changed, costs=FREE) as decoder:
            outputs[executor] = [decoder.generate(prompt, 30, seed=4).token_ids for prompt in PROMPTS]
    assert outputs["inline"] == outputs["worker"]


def test_streamed_tokens_are_the_generation(tiny_target, folder):
    with build_decoder("asynchronous", tiny_target, folder, options(), costs=FREE) as decoder:
        streamed = [token for tokens in decoder.stream(PROMPTS[0], 25) for token in tokens]
        assert streamed == decoder.generate(PROMPTS[0], 25).token_ids


def test_a_stream_that_is_left_early_leaves_a_usable_decoder(tiny_target, folder):
    threads = torch.get_num_threads()
    with build_decoder("asynchronous", tiny_target, folder, options(), costs=FREE) as decoder:
        stream = decoder.stream(PROMPTS[0], 25)
        next(stream)
        stream.close()
        assert torch.get_num_threads() == threads
        assert decoder.generate(PROMPTS[1], 25).token_ids == plain_greedy(tiny_target, PROMPTS[1], 25)


def test_prompts_and_outputs_up_to_the_context_and_no_further(tmp_path):
    target = make_target(context=64)
    folder = make_drafter_folder(tmp_path, target, make_model(context=64))
    prompt = [2, *([5, 9, 13] * 10), 3]
    with build_decoder("asynchronous", target, folder, options(), costs=FREE) as decoder:
        generation = decoder.generate(prompt, 64 - len(prompt))
        assert generation.token_ids == plain_greedy(target, prompt, 64 - len(prompt))
        with pytest.raises(WorkbenchError, match="exceed the target's context of 64"):
            decoder.generate(prompt, 65 - len(prompt))
        with pytest.raises(WorkbenchError, match="empty"):
            decoder.generate([], 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 35}, "35 tokens"),
        ({"template_hash": "f" * 16}, "template hash"),
        ({"mask_token_id": 5}, "mask id 5"),
    ],
)
def test_a_drafter_of_another_target_is_refused(tmp_path, tiny_target, changes, message):
    folder = make_drafter_folder(tmp_path, tiny_target, **changes)
    with pytest.raises(WorkbenchError, match=message):
        build_decoder("synchronous", tiny_target, folder, options())


def test_drafts_longer_than_a_block_are_refused(tmp_path, tiny_target):
    folder = make_drafter_folder(tmp_path, tiny_target, block_size=5)
    with pytest.raises(WorkbenchError, match="blocks hold 5 tokens"):
        build_decoder("synchronous", tiny_target, folder, options())
