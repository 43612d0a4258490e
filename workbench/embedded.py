"""The embedded target: a small real Qwen3, trained from nothing to solve generated word problems.

It lets every stage of the workbench be tried and tested on a laptop, without any download.
"""

import platform
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from workbench.console import console, progress
from workbench.corpus.problems import Problem, final_answer, generate_problems
from workbench.embedded_training import BATCH_SIZE, PEAK_LEARNING_RATE, chat_prompt, fit_embedded
from workbench.files import fingerprint, whole_folder, write_json, write_text

PAD_TOKEN, START_TOKEN, EOS_TOKEN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_TOKENIZER_ROWS = 1000
_EMBEDDING_ROWS = 1024  # rows above the tokenizer's stay unused; a drafter takes the first as its mask token
_MAX_POSITIONS = 2048
_MAX_NEW_TOKENS = 192
_NUM_EVALUATED = 200
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_embedded_target(folder: Path, minutes: float = 20, seed: int = 0, config: Qwen3Config | None = None) -> None:
    """Trains the embedded target, evaluates what was saved, and writes the folder whole.

    A killed run continues where it stopped if it is started again with the same arguments.

    Args:
        folder: Where the checkpoint goes; replaced if it exists.
        minutes: Time spent training; building the tokenizer and the evaluation come on top.
        seed: Seed of the weights and of the training problems.
        config: Shape of the network; `embedded_config()` unless given.
    """
    tokenizer = build_tokenizer()
    config = config or embedded_config()
    config.update({"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id})
    workspace = folder.parent / f".{folder.name}.training"
    run = workspace / fingerprint([minutes, seed, config.to_dict(), tokenizer.backend_tokenizer.to_str()])
    model, facts = fit_embedded(config, tokenizer, minutes, seed, run)
    with whole_folder(folder) as temporary:
        save_checkpoint(temporary, model, tokenizer)
        facts |= {"seed": seed, "parameters": model.num_parameters()} | measure_checkpoint(temporary)
        facts |= {
            "batch_size": BATCH_SIZE,
            "peak_learning_rate": PEAK_LEARNING_RATE,
            "training_dtype": "float32",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "machine": f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
        }
        write_json(temporary / "training.json", facts)
        write_text(temporary / "README.md", render_card(facts, config))
    shutil.rmtree(workspace, ignore_errors=True)
    console.print(f"{folder}: {facts['accuracy']:.1%} of {facts['num_evaluated']} held-out problems right")


def embedded_config() -> Qwen3Config:
    """The shape of the embedded target: 10 layers, about 4.1 million parameters."""
    return Qwen3Config(
        vocab_size=_EMBEDDING_ROWS,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=10,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=_MAX_POSITIONS,
        tie_word_embeddings=True,
    )


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE learned from generated problems; digits are single tokens. The same on every call."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TOKENIZER_ROWS,
        special_tokens=[PAD_TOKEN, START_TOKEN, EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [f"user\n{p.question}\nassistant\n{p.solution}\nsystem\n" for p in generate_problems("train", 0, 4000)]
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        additional_special_tokens=[START_TOKEN],
        model_max_length=_MAX_POSITIONS,
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def save_checkpoint(folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Saves bfloat16 weights, greedy generation settings and the tokenizer. The model becomes bfloat16."""
    model = model.to(torch.bfloat16).eval()  # pyright: ignore[reportArgumentType]
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure_checkpoint(folder: Path) -> dict[str, Any]:
    """Loads a saved checkpoint in float32 and measures it on held-out problems under greedy decoding."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    problems = generate_problems("test", 0, _NUM_EVALUATED)
    responses = solve_problems(model, tokenizer, problems)
    lengths = [len(tokenizer(response)["input_ids"]) + 1 for response in responses]
    prompt_lengths = [len(tokenizer(chat_prompt(tokenizer, problem))["input_ids"]) for problem in problems]
    right = [final_answer(response) == problem.answer for response, problem in zip(responses, problems, strict=True)]
    worded = [response == problem.solution for response, problem in zip(responses, problems, strict=True)]
    return {
        "accuracy": sum(right) / len(problems),
        "exact_solution_fraction": sum(worded) / len(problems),
        "num_evaluated": len(problems),
        "mean_prompt_tokens": round(sum(prompt_lengths) / len(problems), 1),
        "mean_response_tokens": round(sum(lengths) / len(problems), 1),
        "tokenizer_rows": len(tokenizer),
    }


@torch.no_grad()
def solve_problems(
    model: Any, tokenizer: PreTrainedTokenizerFast, problems: list[Problem], batch_size: int = 50
) -> list[str]:
    """Greedy responses of a causal language model, decoded in left-padded batches, without special tokens."""
    responses: list[str] = []
    with progress("solve held-out problems", len(problems)) as advance:
        for start in range(0, len(problems), batch_size):
            prompts = [chat_prompt(tokenizer, problem) for problem in problems[start : start + batch_size]]
            batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
            output_BT = model.generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=_MAX_NEW_TOKENS
            )
            response_BT = output_BT[:, batch["input_ids"].shape[1] :]
            responses += tokenizer.batch_decode(response_BT, skip_special_tokens=True)
            advance(len(prompts), "")
    return responses


def render_card(facts: dict[str, Any], config: Qwen3Config) -> str:
    """The model card, filled from the measured facts."""
    shape = (
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {config.num_attention_heads} heads, "
        f"{config.num_key_value_heads} key-value heads"
    )
    evaluation = f"{facts['num_evaluated']} held-out problems (greedy, computed in float32)"
    duration = f"{facts['minutes']} minutes, {facts['tokens_per_second']:,} tokens a second"
    rows = f"{facts['tokenizer_rows']} tokens in {config.vocab_size} embedding rows"
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [qwen3, arithmetic, speculative-decoding]
---
# qwen3-arith

A small real Qwen3 that solves grade-school word problems step by step. It is the embedded target of the drafter
workbench: small enough for a laptop's CPU, trained from nothing, with no data but generated problems.

| | |
| --- | --- |
| right final answers | {facts["accuracy"]:.1%} of {evaluation} |
| responses equal to the reference solution | {facts["exact_solution_fraction"]:.1%} |
| architecture | stock `Qwen3ForCausalLM`: {shape} |
| parameters | {facts["parameters"]:,} |
| vocabulary | {rows}; the others are unused |
| mean length | prompt {facts["mean_prompt_tokens"]} tokens, response {facts["mean_response_tokens"]} tokens |
| training | {facts["steps"]:,} steps of {facts["batch_size"]} fresh problems, {facts["tokens"]:,} tokens |
| training time | {duration}, {facts["training_dtype"]} |
| optimiser | AdamW, peak learning rate {facts["peak_learning_rate"]}, cosine by time |
| seed | {facts["seed"]} |
| machine | {facts["machine"]} |
| versions | torch {facts["torch"]}, transformers {facts["transformers"]} |

The problems come from `workbench/corpus/problems.py`. The hash of a question's text decides whether it is a training or
a test question, so no evaluated question was trained on; templates and words are shared by both. The model knows these
templates only and is of no use for other questions.

Remake it with `make target`. The schedule goes by time, so another machine gives other weights.

Licence: Apache-2.0.
"""
