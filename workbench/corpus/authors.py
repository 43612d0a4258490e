"""Who writes the responses of a corpus: the target on this machine, or a server that has it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig

from workbench.corpus.generation import generate_responses
from workbench.corpus.selection import SelectedPrompt
from workbench.corpus.server import connect
from workbench.errors import WorkbenchError
from workbench.packing import pack_linears
from workbench.recipe import Recipe
from workbench.targets import (
    encode_prompt,
    load_config,
    load_target,
    load_tokenizer,
    resolve_source,
    stop_ids_of,
    template_hash,
)

_MOST_WORKERS = 4  # more share their cores: each has keys and values of its own

Write = Callable[[Sequence[SelectedPrompt], Callable[[int, int], None]], list[list[int]]]
"""Writes the responses to a shard's prompts; reports finished responses and tokens as it goes."""


@dataclass(frozen=True)
class Author:
    """An author, and what the corpus records of it."""

    identity: str
    revision: str | None
    fingerprint: str | None
    """Of the weights; None for a server, which does not show them."""
    template_hash: str
    stop_ids: frozenset[int]
    encode_prompt: Callable[[str], list[int]]
    write: Write
    num_workers: int
    """Shards that are written side by side."""


def find_author(recipe: Recipe) -> Author:
    """The author that the recipe names.

    Raises:
        WorkbenchError: the target cannot be loaded, or the server cannot be used.
    """
    return _local_author(recipe) if recipe.corpus.server is None else _server_author(recipe, recipe.corpus.server)


def choose_num_workers(num_cores: int, is_on_cpu: bool) -> int:
    """Batches that are generated side by side.

    Matrices of a small model are too small to share: on 2 cores, two batches of one thread each are faster than one of
    two threads. A GPU works on one batch.
    """
    return min(num_cores, _MOST_WORKERS) if is_on_cpu else 1


def _local_author(recipe: Recipe) -> Author:
    options = recipe.corpus
    target = load_target(recipe.target, dtype=options.dtype)
    model = pack_linears(target.model)

    def write(prompts: Sequence[SelectedPrompt], on_finished: Callable[[int, int], None]) -> list[list[int]]:
        return generate_responses(
            model,
            [item.prompt_ids for item in prompts],
            options.max_new_tokens,
            target.stop_ids,
            pad_id=min(target.stop_ids, default=0),
            batch_size=options.batch_size,
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=shard_seed(recipe.seed, prompts),
            on_finished=on_finished,
        )

    return Author(
        identity=target.identity,
        revision=target.revision,
        fingerprint=target.fingerprint,
        template_hash=target.template_hash,
        stop_ids=target.stop_ids,
        encode_prompt=target.encode_prompt,
        write=write,
        num_workers=choose_num_workers(torch.get_num_threads(), target.model.device.type == "cpu"),
    )


def _server_author(recipe: Recipe, url: str) -> Author:
    """Needs the target's tokenizer and configuration, not its weights."""
    options = recipe.target
    config, tokenizer = load_config(options), load_tokenizer(options)
    if tokenizer.eos_token_id is None:
        raise WorkbenchError(f"the tokenizer of {options.model} has no end token, which corpus.server needs")
    try:
        generation_config = GenerationConfig.from_pretrained(resolve_source(options.model))
    except OSError:  # a model need not have one
        generation_config = GenerationConfig.from_model_config(config)
    stop_ids = stop_ids_of(generation_config, tokenizer)
    server = connect(
        url,
        options.model,
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        stop_ids=stop_ids,
        eos_id=tokenizer.eos_token_id,
    )

    def write(prompts: Sequence[SelectedPrompt], on_finished: Callable[[int, int], None]) -> list[list[int]]:
        prompt_ids = [item.prompt_ids for item in prompts]
        return server.respond(prompt_ids, recipe.corpus, shard_seed(recipe.seed, prompts), on_finished)

    return Author(
        identity=server.model,
        revision=getattr(config, "_commit_hash", None),
        fingerprint=None,
        template_hash=template_hash(tokenizer, options.thinking),
        stop_ids=stop_ids,
        encode_prompt=lambda text: encode_prompt(tokenizer, text, options.thinking),
        write=write,
        num_workers=1,
    )


def shard_seed(seed: int, prompts: Sequence[SelectedPrompt]) -> int:
    """Seed of a shard's draws: from its prompts, so that it does not matter which shards were written before."""
    text = "\n".join(item.prompt.text for item in prompts)
    # Below 2**30: with an index added it still is a seed that every server takes.
    return int.from_bytes(hashlib.sha256(f"{seed}\n{text}".encode()).digest()[:4], "big") >> 2
