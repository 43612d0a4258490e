"""Generation by `transformers` itself, as a baseline: plain, with an assistant model, or with prompt lookup.

The loops are the library's own, with its own cache and its own defaults for what it drafts. Rounds are counted from
outside: every forward call of the target is one verification, and its rows beyond the first are the draft. The first
call is a round as well where the library lets it verify a draft together with the prompt.

Dimensions: R row, V vocabulary.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from workbench.decode.cores import ShareOfMachine
from workbench.decode.decoder import DecodeStatistics, Generation, Round, num_agreed
from workbench.drafter.model import load_drafter
from workbench.recipe import DecodeOptions
from workbench.targets import Target

StockKind = Literal["transformers", "transformers-assisted", "transformers-lookup"]

LOOKUP_TOKENS = 10
"""Tokens that prompt lookup drafts; the library's own default."""


class StockDecoder:
    """Generates with `model.generate`, on the whole machine. Use as a context manager.

    Args:
        target: The model whose output is preserved.
        kind: Which of the library's loops.
        drafter_folder: The assistant of `transformers-assisted`: a drafter, used autoregressively.
        options: Sampling settings and the drafter's precision.
        threads: CPU threads.
    """

    def __init__(
        self, target: Target, kind: StockKind, drafter_folder: Path | None, options: DecodeOptions, threads: int
    ) -> None:
        self._target = target
        self._kind = kind
        self._options = options
        self._threads = threads
        self._assistant = None
        if kind == "transformers-assisted":
            assert drafter_folder is not None
            self._assistant = load_assistant(target, drafter_folder, options.drafter_dtype)

    def __enter__(self) -> "StockDecoder":
        return self

    def __exit__(self, *_: object) -> None:
        self._assistant = None

    def push(
        self,
        receive: Callable[[list[int]], None],
        prompt: Sequence[int],
        max_new_tokens: int,
        temperature: float | None = None,
        seed: int = 0,
    ) -> Generation:
        """Generates to the end.

        Args:
            receive: Called with the token ids of every round.
            prompt: Token ids.
            max_new_tokens: Output length limit.
            temperature: Overrides the recipe's; 0 is greedy.
            seed: Of the library's random numbers, which are others than those of the workbench's decoders.
        """
        model = self._target.model
        observer = _Observer(receive, len(prompt), counts_rounds=self._kind != "transformers")
        arguments: dict[str, Any] = {}
        if self._assistant is not None:
            arguments["assistant_model"] = self._assistant
        if self._kind == "transformers-lookup":
            arguments["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        prompt_1R = torch.tensor([list(prompt)], device=model.device)
        with (
            torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []),
            ShareOfMachine(self._threads, None),
            observer.watching(model),
            self._generation_config(max_new_tokens, temperature),
        ):
            torch.manual_seed(seed)
            model.generate(prompt_1R, attention_mask=torch.ones_like(prompt_1R), streamer=observer, **arguments)
        token_ids = observer.token_ids
        statistics = observer.statistics
        statistics.prefill_s = statistics.emit_times_s[0]
        statistics.decode_s = statistics.emit_times_s[-1] - statistics.prefill_s
        stopped = token_ids[-1] in self._target.stop_ids
        text = self._target.tokenizer.decode(token_ids, skip_special_tokens=True)
        return Generation(token_ids, text, "stop" if stopped else "length", statistics)

    @contextlib.contextmanager
    def _generation_config(self, max_new_tokens: int, temperature: float | None) -> Iterator[None]:
        """Replaces the model's own settings for a while: they would fill in penalties and truncations of their own."""
        options, model = self._options, self._target.model
        chosen = options.temperature if temperature is None else temperature
        sampling: dict[str, Any] = {"do_sample": False}
        if chosen:
            sampling = {"do_sample": True, "temperature": chosen, "top_p": options.top_p, "top_k": options.top_k}
        before = model.generation_config
        model.generation_config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            eos_token_id=sorted(self._target.stop_ids),
            pad_token_id=min(self._target.stop_ids, default=0),
            **sampling,
        )
        try:
            yield
        finally:
            model.generation_config = before


def load_assistant(target: Target, folder: Path, dtype: str) -> Any:
    """A drafter as an assistant model, which never proposes the mask token or a padded row of the vocabulary."""
    drafter = load_drafter(folder, dtype, str(target.model.device))
    num_rows = target.config.vocab_size
    drafter.model.config.vocab_size = num_rows

    def forbid(_module: Any, _inputs: Any, output: Any) -> Any:
        logits = output.logits
        allowed = logits.new_full((*logits.shape[:-1], num_rows), float("-inf"))
        allowed[..., : drafter.spec.vocab_size] = logits[..., : drafter.spec.vocab_size]
        output.logits = allowed
        return output

    drafter.model.register_forward_hook(forbid)
    drafter.model.generation_config = GenerationConfig(eos_token_id=sorted(target.stop_ids), pad_token_id=0)
    return drafter.model


class _Observer(BaseStreamer):
    """Receives the library's tokens, and watches the target's forward calls to know what they verified."""

    def __init__(self, receive: Callable[[list[int]], None], num_prompt_tokens: int, counts_rounds: bool) -> None:
        self.token_ids: list[int] = []
        self.statistics = DecodeStatistics()
        self._receive = receive
        self._counts_rounds = counts_rounds
        self._num_known = num_prompt_tokens
        self._is_prompt = True
        self._start_s = self._round_start_s = self._verify_start_s = self._verify_stop_s = time.monotonic()
        self._draft: list[int] = []

    @contextlib.contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Hooks the model's forward calls for a while."""
        handles = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompt, then the tokens of every round."""
        if self._is_prompt:
            self._is_prompt = False
            return
        emitted = value.flatten().tolist()
        self._receive(emitted)
        now_s = time.monotonic()
        self.token_ids += emitted
        self.statistics.emit_times_s += [now_s - self._start_s] * len(emitted)
        if self._counts_rounds and (self._draft or len(self.token_ids) > len(emitted)):
            self.statistics.rounds.append(self._round(emitted, now_s))
        self._round_start_s, self._num_known = now_s, 1

    def end(self) -> None:
        """Nothing is held back."""

    def _before_forward(self, _module: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._verify_start_s = time.monotonic()
        rows_1R = keywords["input_ids"] if "input_ids" in keywords else inputs[0]
        self._draft = rows_1R[0, self._num_known :].tolist()

    def _after_forward(self, *_: Any) -> None:
        self._verify_stop_s = time.monotonic()

    def _round(self, emitted: Sequence[int], now_s: float) -> Round:
        return Round(
            num_accepted=num_agreed(self._draft, emitted),
            num_emitted=len(emitted),
            draft_length=len(self._draft),
            outcome="none",
            num_hypotheses=0,
            verify_s=self._verify_stop_s - self._verify_start_s,
            draft_s=self._verify_start_s - self._round_start_s,
            packed_s=0.0,
            round_s=now_s - self._round_start_s,
        )
