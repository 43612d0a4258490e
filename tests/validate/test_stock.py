"""The library's own loops as baselines: lossless, counted from outside, and never a token that must not be proposed."""

import dataclasses

import pytest
import torch

from tests.conftest import make_drafter_folder, make_model, make_target
from workbench.decode import build_decoder
from workbench.recipe import DecodeOptions
from workbench.targets import Target
from workbench.validate.losslessness import check_rounds
from workbench.validate.stock import StockDecoder, load_assistant

OPTIONS = DecodeOptions(executor="inline", target_threads=1, drafter_threads=1)
PROMPTS = [[2, 7, 9, 30, 3], [2, 11, 3], [2, *range(4, 30), 3], [2, *([8, 21, 5] * 6), 8, 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_target):
    return make_drafter_folder(tmp_path_factory.mktemp("drafter"), tiny_target)


def generate(decoder, prompt, max_new_tokens=24, **options):
    bursts = []
    generation = decoder.push(bursts.append, prompt, max_new_tokens, **options)
    assert [token for burst in bursts for token in burst] == generation.token_ids
    return generation


@pytest.mark.parametrize("kind", ["transformers", "transformers-assisted", "transformers-lookup"])
def test_greedy_equals_plain_decoding_and_rounds_add_up(tiny_target, folder, kind):
    with (
        build_decoder("autoregressive", tiny_target, None, OPTIONS) as plain,
        StockDecoder(tiny_target, kind, folder, OPTIONS, 1) as decoder,
    ):
        for prompt in PROMPTS:
            for limit in (1, 2, 24):
                generation = generate(decoder, prompt, limit)
                reference = plain.generate(prompt, limit)
                assert generation.token_ids == reference.token_ids
                assert generation.stop_reason == reference.stop_reason
                assert len(generation.statistics.emit_times_s) == len(generation.token_ids)
                entries = [dataclasses.asdict(entry) for entry in generation.statistics.rounds]
                assert check_rounds(entries, len(generation.token_ids)) is None


def test_a_copy_of_the_target_is_accepted_and_every_forward_is_a_round(tiny_target, folder):
    """The drafter is the target itself: only the end of a draft ends a round."""
    calls = []
    handle = tiny_target.model.register_forward_hook(lambda *_: calls.append(None))
    with StockDecoder(tiny_target, "transformers-assisted", folder, OPTIONS, 1) as decoder:
        generation = generate(decoder, PROMPTS[0], 24)
    handle.remove()
    rounds = generation.statistics.rounds
    assert len(calls) == len(rounds)
    assert generation.statistics.acceptance_length > 1.5
    assert all(entry.num_accepted == entry.draft_length for entry in rounds[:-1])


def test_prompt_lookup_finds_what_the_prompt_repeats():
    target = make_target(scale=0.0)  # all logits alike: the output repeats one token
    with StockDecoder(target, "transformers-lookup", None, OPTIONS, 1) as decoder:
        generation = generate(decoder, [2, *([0] * 8)], 20)
    assert set(generation.token_ids) == {0}
    assert generation.statistics.acceptance_length > 5


def test_the_mask_token_and_padded_rows_are_never_proposed(tmp_path):
    target = make_target()
    model = make_model(vocab_rows=target.config.vocab_size + 3)  # with a mask row past the target's vocabulary
    folder = make_drafter_folder(tmp_path, target, model)
    assistant = load_assistant(target, folder, "float32")
    logits = assistant(torch.tensor([PROMPTS[0]])).logits
    assert logits.shape[-1] == target.config.vocab_size
    assert logits[..., len(target.tokenizer) :].isneginf().all()
    assert logits[..., : len(target.tokenizer)].isfinite().all()
    sampled = dataclasses.replace(OPTIONS, temperature=2.0)
    with StockDecoder(target, "transformers-assisted", folder, sampled, 1) as decoder:
        verified = []
        handle = target.model.register_forward_pre_hook(
            lambda _, inputs, keywords: verified.append(keywords["input_ids"][0].tolist()), with_kwargs=True
        )
        for seed in range(8):
            generate(decoder, PROMPTS[0], 24, seed=seed)
        handle.remove()
    drafts = [row[len(PROMPTS[0]) if row[: len(PROMPTS[0])] == PROMPTS[0] else 1 :] for row in verified]
    assert sum(map(len, drafts)) > 50
    assert max(token for draft in drafts for token in draft) < len(target.tokenizer)


def test_sampling_follows_its_seed_and_leaves_the_other_random_numbers_alone(tiny_target, folder):
    sampled = dataclasses.replace(OPTIONS, temperature=1.0, top_k=20)
    with StockDecoder(tiny_target, "transformers-assisted", folder, sampled, 1) as decoder:
        torch.manual_seed(5)
        first = generate(decoder, PROMPTS[0], seed=1).token_ids
        drawn = torch.rand(1)
        torch.manual_seed(5)
        assert torch.equal(torch.rand(1), drawn)
        assert generate(decoder, PROMPTS[0], seed=1).token_ids == first
        assert generate(decoder, PROMPTS[0], seed=2).token_ids != first


def test_the_models_own_settings_do_not_enter_and_come_back(tiny_target: Target):
    settings = tiny_target.model.generation_config
    settings.repetition_penalty = 5.0
    try:
        with (
            build_decoder("autoregressive", tiny_target, None, OPTIONS) as plain,
            StockDecoder(tiny_target, "transformers", None, OPTIONS, 1) as decoder,
        ):
            assert generate(decoder, PROMPTS[1]).token_ids == plain.generate(PROMPTS[1], 24).token_ids
    finally:
        settings.repetition_penalty = None
    assert tiny_target.model.generation_config is settings
