"""Training of the embedded target from nothing: fresh problems every step, a schedule by time, runs that continue.

Dimensions: B sequence, T token.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from workbench.console import progress
from workbench.corpus.problems import Problem, generate_problems

BATCH_SIZE = 16
PEAK_LEARNING_RATE = 2e-3
_WARMUP_STEPS = 200
_PROMPT_WEIGHT = 0.1  # prompts are supervised a little: they teach the words at no cost
_POOL_BATCHES = 32  # sequences of so many batches are sorted by length, so that little is padded
_STEPS_PER_CHECKPOINT = 250

Batch = tuple[torch.Tensor, torch.Tensor]


def fit_embedded(
    config: Qwen3Config, tokenizer: PreTrainedTokenizerFast, minutes: float, seed: int, workspace: Path
) -> tuple[Qwen3ForCausalLM, dict[str, Any]]:
    """Trains a model for some minutes; a killed run continues from its last checkpoint in `workspace`.

    Returns:
        The trained model in float32, and what the training took: steps, tokens, minutes, losses.
    """
    lightning.seed_everything(seed, verbose=False)
    module = _EmbeddedModule(Qwen3ForCausalLM(config), tokenizer, minutes * 60, seed)
    checkpoint = ModelCheckpoint(
        dirpath=workspace, filename="last", every_n_train_steps=_STEPS_PER_CHECKPOINT, enable_version_counter=False
    )
    last_path = workspace / "last.ckpt"
    with progress("train the embedded target (seconds)", max(1, round(minutes * 60))) as advance:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            gradient_clip_val=1.0,
            callbacks=[checkpoint, _Reporter(advance)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, ckpt_path=last_path if last_path.exists() else None)
    facts = {
        "steps": trainer.global_step,
        "problems": trainer.global_step * BATCH_SIZE,
        "tokens": module.num_tokens,
        "minutes": round(module.elapsed_s / 60, 2),
        "tokens_per_second": round(module.num_tokens / module.elapsed_s),
        "final_loss": round(module.smoothed_loss, 5),
    }
    return module.model, facts


class _EmbeddedModule(lightning.LightningModule):
    """Next-token training of a stock Qwen3; the learning rate follows the share of the time that is spent."""

    def __init__(self, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, budget_s: float, seed: int):
        super().__init__()
        self.model = model.train()
        self.elapsed_s = 0.0
        self.num_tokens = 0
        self.smoothed_loss = math.nan
        self._tokenizer = tokenizer
        self._budget_s = budget_s
        self._seed = seed
        self._resumed_at_s = 0.0

    def train_dataloader(self) -> DataLoader:
        return DataLoader(_FreshBatches(self._tokenizer, self._seed, self.global_step), batch_size=None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        matrices = [parameter for parameter in self.parameters() if parameter.ndim > 1]
        scales = [parameter for parameter in self.parameters() if parameter.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": scales, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), fused=True)

    def on_fit_start(self) -> None:
        self._resumed_at_s = time.monotonic() - self.elapsed_s

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        rate = _learning_rate(self.global_step, self.elapsed_s / self._budget_s)
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        for group in optimizer.param_groups:
            group["lr"] = rate

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        tokens_BT, weights_BT = batch
        logits_BTV = self.model(input_ids=tokens_BT, use_cache=False).logits
        loss = next_token_loss(logits_BTV, tokens_BT, weights_BT)
        value = loss.item()
        self.smoothed_loss = value if math.isnan(self.smoothed_loss) else 0.98 * self.smoothed_loss + 0.02 * value
        self.num_tokens += int((weights_BT > 0).sum())
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.elapsed_s = time.monotonic() - self._resumed_at_s
        if self.elapsed_s >= self._budget_s:
            self.trainer.should_stop = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["spent"] = [self.elapsed_s, self.num_tokens, self.smoothed_loss]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.elapsed_s, self.num_tokens, self.smoothed_loss = checkpoint["spent"]


class _Reporter(Callback):
    """Advances the progress display by the seconds that training spent."""

    def __init__(self, advance: Any):
        self._advance = advance
        self._shown_s = 0

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, _EmbeddedModule)
        whole_s = int(pl_module.elapsed_s)
        if whole_s > self._shown_s:
            self._advance(whole_s - self._shown_s, f"step {trainer.global_step}, loss {pl_module.smoothed_loss:.4f}")
            self._shown_s = whole_s


class _FreshBatches(IterableDataset):
    """Endless batches of new problems; batch number `step` depends on the seed and the number alone."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, first_step: int):
        self._tokenizer = tokenizer
        self._seed = seed
        self._first_step = first_step

    def __iter__(self) -> Iterator[Batch]:
        pool, offset = divmod(self._first_step, _POOL_BATCHES)
        while True:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + pool)
            problems = generate_problems("train", self._seed * 1_000_003 + pool, _POOL_BATCHES * BATCH_SIZE)
            sequences = sorted(_encode(self._tokenizer, problems), key=lambda sequence: len(sequence[0]))
            order = torch.randperm(_POOL_BATCHES, generator=generator).tolist()
            for index in order[offset:]:
                yield _collate(sequences[index * BATCH_SIZE : (index + 1) * BATCH_SIZE], self._tokenizer)
            pool, offset = pool + 1, 0


def next_token_loss(logits_BTV: torch.Tensor, tokens_BT: torch.Tensor, weights_BT: torch.Tensor) -> torch.Tensor:
    """Weighted mean cross-entropy; row `i` predicts token `i + 1`, whose weight counts."""
    weights_R = weights_BT[:, 1:].flatten()
    losses_R = functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1).float(), tokens_BT[:, 1:].flatten(), reduction="none"
    )
    return (losses_R * weights_R).sum() / weights_R.sum()


def _learning_rate(step: int, spent_fraction: float) -> float:
    """Linear warm-up by steps, cosine to zero by the fraction of the time that is spent."""
    return (
        PEAK_LEARNING_RATE
        * min(1.0, (step + 1) / _WARMUP_STEPS)
        * (1 + math.cos(math.pi * min(1.0, spent_fraction)))
        / 2
    )


def chat_prompt(tokenizer: PreTrainedTokenizerFast, problem: Problem) -> str:
    """The rendered conversation up to where the response begins."""
    messages = [{"role": "user", "content": problem.question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert isinstance(prompt, str)
    return prompt


def _encode(tokenizer: PreTrainedTokenizerFast, problems: list[Problem]) -> list[tuple[list[int], int]]:
    """Token ids of each conversation up to its EOS, and the length of its prompt."""
    prompts = [chat_prompt(tokenizer, problem) for problem in problems]
    responses = [problem.solution + str(tokenizer.eos_token) for problem in problems]
    encoded_prompts = tokenizer(prompts)["input_ids"]
    encoded_responses = tokenizer(responses)["input_ids"]
    return [
        (prompt + response, len(prompt)) for prompt, response in zip(encoded_prompts, encoded_responses, strict=True)
    ]


def _collate(sequences: list[tuple[list[int], int]], tokenizer: PreTrainedTokenizerFast) -> Batch:
    """Right-padded token ids and the weight of every token in the loss, 0 on padding; two (B, T) tensors."""
    length = max(len(tokens) for tokens, _ in sequences)
    pad_id = tokenizer.pad_token_id
    assert isinstance(pad_id, int)
    tokens_BT = torch.full((len(sequences), length), pad_id)
    weights_BT = torch.zeros(len(sequences), length)
    for row, (tokens, prompt_length) in enumerate(sequences):
        tokens_BT[row, : len(tokens)] = torch.tensor(tokens)
        weights_BT[row, : len(tokens)] = 1.0
        weights_BT[row, :prompt_length] = _PROMPT_WEIGHT
    return tokens_BT, weights_BT
