"""Decoding with a drafter that reads the target's hidden states: lossless, whatever the drafter."""

import dataclasses

import pytest
import torch

from tests.conftest import make_target
from tests.decode.test_decoder import PROMPTS, options, plain_greedy
from tests.drafter.test_dflash import make_published
from workbench.decode import build_decoder
from workbench.drafter.dflash import build_dflash, hidden_features, save_dflash
from workbench.errors import WorkbenchError


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return make_published(tmp_path_factory.mktemp("published"))


@pytest.mark.parametrize("block_size", [2, 5, 16])
def test_a_published_folder_decodes_losslessly(tmp_path, tiny_target, block_size):
    folder = make_published(tmp_path, block_size=block_size)
    with build_decoder("synchronous", tiny_target, folder, options()) as decoder:
        for prompt in PROMPTS:
            for limit in (1, 2, 40):
                generation = decoder.generate(prompt, limit)
                assert generation.token_ids == plain_greedy(tiny_target, prompt, limit)
                assert all(entry.draft_length < block_size for entry in generation.statistics.rounds)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_sample_match_emits_what_plain_sampling_emits(tmp_path, kind):
    target = make_target(kind)
    save_dflash(build_dflash(target, num_layers=2, block_size=5, num_read_layers=2), tmp_path)
    chosen = options(temperature=0.8, top_p=0.95)
    with (
        build_decoder("autoregressive", target, None, chosen) as plain,
        build_decoder("synchronous", target, tmp_path, chosen) as decoder,
    ):
        for seed, prompt in enumerate(PROMPTS):
            assert decoder.generate(prompt, 30, seed=seed).token_ids == plain.generate(prompt, 30, seed=seed).token_ids


def test_drafts_are_those_of_one_pass_over_the_hidden_states_of_what_is_committed(tiny_target, published):
    """The cached context, round by round, equals a fresh one: what training computes."""
    with build_decoder("synchronous", tiny_target, published, options()) as decoder:
        seen = []
        decoder.observer = lambda draft, emitted: seen.append((list(draft.token_ids), list(emitted)))
        generation = decoder.generate(PROMPTS[0], 30)
        model, spec = decoder.source._model, decoder.source._spec  # type: ignore[attr-defined]
    committed = [*PROMPTS[0], generation.token_ids[0]]
    assert len(seen) > 3
    for draft, emitted in seen:
        with torch.inference_mode():
            states = tiny_target.model(torch.tensor([committed[:-1]]), output_hidden_states=True).hidden_states
            features = hidden_features(states, spec.target_layer_ids)
            ids = torch.tensor([[committed[-1], *[spec.mask_token_id] * (spec.block_size - 1)]])
            num_known = len(committed) - 1
            hidden = model(
                tiny_target.model.get_input_embeddings()(ids),
                torch.arange(num_known, num_known + spec.block_size)[None],
                features,
                torch.arange(num_known)[None],
                torch.ones((1, 1, spec.block_size, num_known + spec.block_size), dtype=torch.bool),
            )
            logits = tiny_target.model.get_output_embeddings()(hidden[0, 1:])
            logits[:, spec.mask_token_id] = float("-inf")
        assert draft == logits.argmax(-1).tolist()[: len(draft)]
        committed += emitted


def test_neither_mask_nor_padding_is_ever_proposed(tmp_path, tiny_target):
    drafter = build_dflash(tiny_target, num_layers=1, block_size=9, num_read_layers=2)
    save_dflash(drafter, tmp_path)
    chosen = dataclasses.replace(options(temperature=3.0), acceptance="rejection")
    drafted = []
    with build_decoder("synchronous", tiny_target, tmp_path, chosen) as decoder:
        decoder.observer = lambda draft, emitted: drafted.extend(draft.token_ids)
        for seed in range(10):
            decoder.generate(PROMPTS[0], 30, seed=seed)
    assert len(drafted) > 200
    assert max(drafted) < len(tiny_target.tokenizer)


def test_it_cannot_draft_ahead_and_needs_the_eager_engine(tiny_target, published):
    with pytest.raises(WorkbenchError, match="cannot draft meanwhile"):
        build_decoder("asynchronous", tiny_target, published, options())
    with pytest.raises(WorkbenchError, match=r"decode\.engine eager"):
        build_decoder("synchronous", tiny_target, published, options(engine="compiled"))
