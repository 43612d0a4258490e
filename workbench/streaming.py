"""Streams one text through a drafter, beside a short plain decoding of the same prompt."""

import sys
from pathlib import Path
from typing import Any

from workbench.console import console
from workbench.decode import build_decoder
from workbench.decode.decoder import Decoder, Generation
from workbench.drafter.model import check_pair, read_spec
from workbench.errors import WorkbenchError
from workbench.publish.manifest import MANIFEST_FILE, read_manifest
from workbench.publish.verify import load_stated_target, recorded_recipe
from workbench.recipe import DecodeOptions, TargetOptions
from workbench.targets import Target, load_target

_PLAIN_TOKENS = 64
"""Of the plain decoding that the speed is compared with."""


def stream_text(drafter_folder: Path, prompt: str, target_model: str | None, max_new_tokens: int) -> None:
    """Prints the text as it is generated, then tokens per second, acceptance length and speedup.

    Args:
        drafter_folder: A published drafter, or any folder in its format.
        prompt: A user message.
        target_model: Where the target is; None: where the manifest says.
        max_new_tokens: Length limit.

    Raises:
        WorkbenchError: the folder is no drafter, or its target is unknown or another one.
    """
    spec = read_spec(drafter_folder)
    target, options = _load_pair(drafter_folder, target_model)
    check_pair(spec, target)
    with (
        build_decoder("autoregressive", target, None, options) as plain_decoder,
        build_decoder("asynchronous", target, drafter_folder, options) as decoder,
    ):
        for either in (plain_decoder, decoder):
            either.generate(prompt, 8)  # the first passes allocate
        plain = plain_decoder.generate(prompt, min(_PLAIN_TOKENS, max_new_tokens))
        generation = _print_stream(decoder, prompt, max_new_tokens)
    console.print(f"\n{render_gain(generation, plain)}", markup=False)


def render_gain(generation: Generation, plain: Generation) -> str:
    """One line about a generation, compared with plain decoding of (the start of) the same output."""
    speed, plain_speed = _tokens_per_second(generation), _tokens_per_second(plain)
    if speed is None or plain_speed is None:
        return f"{len(generation.token_ids)} tokens: too few to measure"
    return (
        f"{len(generation.token_ids)} tokens, {speed:.0f} tokens/s, "
        f"acceptance length {generation.statistics.acceptance_length:.2f}; "
        f"plain decoding {plain_speed:.0f} tokens/s: {speed / plain_speed:.2f}x"
    )


def _load_pair(folder: Path, target_model: str | None) -> tuple[Target, DecodeOptions]:
    """The target and how to decode: as published, or by default for a folder without a manifest."""
    given = TargetOptions(model=target_model) if target_model else None
    if (folder / MANIFEST_FILE).is_file():
        recipe = recorded_recipe(folder, read_manifest(folder))
        return load_stated_target(folder, recipe.target, given), recipe.decode
    if given is None:
        raise WorkbenchError(f"{folder} has no {MANIFEST_FILE} that names its target: name it with --target")
    return load_target(given), DecodeOptions(draft_length=min(8, read_spec(folder).block_size))


def _print_stream(decoder: Decoder, prompt: str, max_new_tokens: int) -> Generation:
    printed, token_ids = "", []
    stream = decoder.stream(prompt, max_new_tokens)
    while True:
        try:
            token_ids += next(stream)
        except StopIteration as end:
            result: Generation = end.value
            _print_text(result.text.removeprefix(printed))
            return result
        text = _text(decoder.target.tokenizer, token_ids)
        # A character whose bytes have not all come yet is shown as this sign.
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            _print_text(text.removeprefix(printed))
            printed = text


def _text(tokenizer: Any, token_ids: list[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=True)


def _print_text(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _tokens_per_second(generation: Generation) -> float | None:
    """From the first token to the last."""
    count = len(generation.token_ids) - 1
    return count / generation.statistics.decode_s if count and generation.statistics.decode_s else None
