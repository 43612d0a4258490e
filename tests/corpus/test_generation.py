"""Batched generation is compared with one sequence at a time, written in the most obvious way."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import make_model
from workbench.corpus.generation import Sampler, generate_responses

STOPS, PAD = frozenset(range(1, 36, 7)), 0


def generate_alone(model, prompt_ids, max_new_tokens, choose):
    """One sequence, no cache, no padding."""
    ids = list(prompt_ids)
    while len(ids) - len(prompt_ids) < max_new_tokens:
        logits_V = model(torch.tensor([ids])).logits[0, -1]
        ids.append(choose(logits_V, len(ids) - len(prompt_ids)))
        if ids[-1] in STOPS:
            break
    return ids[len(prompt_ids) :]


def draw_prompts(count, seed=0, shortest=1, longest=12):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(2, 36, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model(request):
    return make_model(request.param)


@pytest.mark.parametrize("batch_size", [1, 3, 8, 64])
def test_any_batch_size_equals_one_sequence_at_a_time(model, batch_size):
    prompts = draw_prompts(20)
    expected = [generate_alone(model, ids, 16, lambda logits, _: int(logits.argmax())) for ids in prompts]
    assert len({len(response) for response in expected}) > 2, "they must stop at different times, or nothing is tested"
    assert generate_responses(model, prompts, 16, STOPS, PAD, batch_size=batch_size) == expected


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_draws_belong_to_the_prompt_not_to_the_row(model, batch_size):
    prompts = draw_prompts(10, seed=1)
    sampler = Sampler(temperature=0.8, top_p=0.9, top_k=12, seed=3, max_new_tokens=12)
    expected = []
    for index, ids in enumerate(prompts):
        draws = sampler.draws(index)
        expected.append(
            generate_alone(
                model, ids, 12, lambda logits, i, u=draws: int(sampler.select(logits[None], u[i : i + 1])[0])
            )
        )
    responses = generate_responses(
        model, prompts, 12, STOPS, PAD, batch_size=batch_size, temperature=0.8, top_p=0.9, top_k=12, seed=3
    )
    assert responses == expected
    other_seed = generate_responses(model, prompts, 12, STOPS, PAD, temperature=0.8, top_p=0.9, top_k=12, seed=4)
    assert other_seed != expected


def test_the_cache_moves_its_contents_when_it_is_full(model, monkeypatch):
    monkeypatch.setattr("workbench.corpus.generation._SLACK_SLOTS", 1)
    prompts = draw_prompts(30, seed=2)
    expected = [generate_alone(model, ids, 10, lambda logits, _: int(logits.argmax())) for ids in prompts]
    assert generate_responses(model, prompts, 10, STOPS, PAD, batch_size=4) == expected


def test_reports_every_response_and_token():
    model, prompts, seen = make_model(), draw_prompts(9), []
    responses = generate_responses(
        model, prompts, 8, STOPS, PAD, batch_size=4, on_finished=lambda *counts: seen.append(counts)
    )
    assert sum(count for count, _ in seen) == 9
    assert sum(tokens for _, tokens in seen) == sum(map(len, responses))


def test_no_prompt_is_no_work():
    assert generate_responses(make_model(), [], 8, STOPS, PAD) == []


@given(
    logits=st.lists(st.floats(-4, 4), min_size=2, max_size=8),
    temperature=st.floats(0.3, 2),
    top_p=st.sampled_from([0.3, 0.7, 1.0]),
    top_k=st.integers(0, 8),
)
@settings(max_examples=60, deadline=None)
def test_quantiles_follow_the_truncated_distribution(logits, temperature, top_p, top_k):
    """Evenly spread random numbers must hit every token as often as its renormalised probability says."""
    probs = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, -1)
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    allowed, mass = [], 0.0
    for token in order[: top_k or None]:
        within_k = sum(probs[other].item() for other in order[: top_k or None])
        if mass < top_p * within_k - 1e-12:
            allowed.append(token)
        mass += probs[token].item()
    expected = torch.zeros(len(logits), dtype=torch.float64)
    expected[allowed] = probs[allowed] / probs[allowed].sum()
    count = 4000
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    sampler = Sampler(temperature, top_p, top_k, seed=0, max_new_tokens=1)
    chosen = sampler.select(torch.tensor(logits, dtype=torch.float64).expand(count, -1), uniform)
    frequency = torch.bincount(chosen, minlength=len(logits)).double() / count
    assert (frequency - expected).abs().max() < 2 / count
