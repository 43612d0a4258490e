"""The embedded target: its tokenizer, a tiny training from start to folder, and the committed checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench import embedded, embedded_training
from workbench.corpus.problems import final_answer, generate_problems
from workbench.embedded import build_tokenizer, embedded_config, solve_problems, train_embedded_target
from workbench.embedded_training import chat_prompt

CHECKPOINT = Path(__file__).parent.parent / "checkpoints" / "qwen3-arith"


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def tiny_config():
    config = embedded_config()
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 32, 64, 1
    config.layer_types = ["full_attention"]
    return config


def test_the_tokenizer_is_the_same_on_every_call(tokenizer):
    assert tokenizer.backend_tokenizer.to_str() == build_tokenizer().backend_tokenizer.to_str()


def test_the_tokenizer_leaves_rows_unused_and_splits_digits(tokenizer):
    assert len(tokenizer) < embedded_config().vocab_size
    assert tokenizer.tokenize("12 * 345 = 4140") == ["1", "2", "Ġ*", "Ġ", *"345", "Ġ=", "Ġ", *"4140"]
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


@pytest.mark.parametrize("text", ["Tom has 12 apples.\n", "naïve café, 数学 🙂", " two  spaces "])
def test_the_tokenizer_is_reversible(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_chat_template_takes_several_turns_and_a_system_message(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2 + 2?"},
    ]
    begun = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n"
    whole = begun + "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == whole
    assert (
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        == whole + "<|im_start|>assistant\n"
    )


def test_prompt_and_response_tokenize_apart_as_together(tokenizer):
    for problem in generate_problems("train", 9, 50):
        ((tokens, prompt_length),) = embedded_training._encode(tokenizer, [problem])
        prompt = chat_prompt(tokenizer, problem)
        assert tokens == tokenizer(prompt + problem.solution + "<|im_end|>")["input_ids"]
        assert tokenizer.decode(tokens[:prompt_length]) == prompt


def test_the_loss_compares_each_row_with_the_next_token():
    tokens_BT = torch.tensor([[3, 1, 2, 0]])
    weights_BT = torch.tensor([[0.5, 1.0, 1.0, 0.0]])
    logits_BTV = torch.zeros(1, 4, 4)
    logits_BTV[0, 0, 1] = logits_BTV[0, 1, 2] = 50.0
    assert embedded_training.next_token_loss(logits_BTV, tokens_BT, weights_BT) < 1e-6
    logits_BTV[0, 1] = 0.0
    expected = torch.log(torch.tensor(4.0)) / 2
    torch.testing.assert_close(embedded_training.next_token_loss(logits_BTV, tokens_BT, weights_BT), expected)


def test_batches_continue_where_a_run_stopped(tokenizer):
    batches = iter(embedded_training._FreshBatches(tokenizer, 5, 0))
    expected_BT = [next(batches)[0] for _ in range(35)][33]
    resumed_BT, _ = next(iter(embedded_training._FreshBatches(tokenizer, 5, 33)))
    assert torch.equal(resumed_BT, expected_BT)


def test_a_killed_training_continues(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(embedded_training, "_STEPS_PER_CHECKPOINT", 1)
    _, first = embedded_training.fit_embedded(tiny_config(), tokenizer, 0.001, 0, tmp_path)
    _, second = embedded_training.fit_embedded(tiny_config(), tokenizer, 0.02, 0, tmp_path)
    assert second["steps"] > first["steps"] >= 1
    assert second["tokens"] > first["tokens"]
    assert second["minutes"] >= 0.02


def test_a_tiny_training_ends_in_a_loadable_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "_NUM_EVALUATED", 4)
    folder = tmp_path / "tiny"
    train_embedded_target(folder, minutes=0.003, seed=1, config=tiny_config())
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == tokenizer("<|im_end|>")["input_ids"][0]
    assert model.generation_config.do_sample is False
    facts = json.loads((folder / "training.json").read_text())
    assert facts["steps"] >= 1
    assert facts["seed"] == 1
    assert facts["num_evaluated"] == 4
    card = (folder / "README.md").read_text()
    assert f"{facts['tokens']:,} tokens" in card
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_the_committed_checkpoint_solves_held_out_problems():
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT, local_files_only=True)
    problems = generate_problems("test", 77, 100)  # of 20, chance alone decides: the first 20 give 12 right
    responses = solve_problems(model, tokenizer, problems)
    right = sum(final_answer(text) == problem.answer for text, problem in zip(responses, problems, strict=True))
    assert right >= 70


def test_the_committed_tokenizer_is_the_one_the_code_builds(tokenizer):
    committed = AutoTokenizer.from_pretrained(CHECKPOINT, local_files_only=True)
    for problem in generate_problems("test", 0, 20):
        text = chat_prompt(tokenizer, problem) + problem.solution
        assert committed(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert committed.chat_template == tokenizer.chat_template
