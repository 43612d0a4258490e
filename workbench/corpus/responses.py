"""The corpus: responses that the target itself writes to the selected prompts, in resumable shards.

A corpus folder holds the shards, `plan.json` with what they were started for, and `corpus.json`, written last.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from workbench.console import console
from workbench.corpus.authors import Author, find_author
from workbench.corpus.generation import generate_responses
from workbench.corpus.selection import SourceCount, select_prompts
from workbench.corpus.shards import plan_shards, read_part, read_shard_facts, write_shards
from workbench.errors import WorkbenchError
from workbench.files import fingerprint, read_json, write_json
from workbench.recipe import Recipe

__all__ = ["Corpus", "describe_lengths", "generate_responses", "load_corpus", "write_corpus"]

CORPUS_FILE = "corpus.json"
PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Corpus:
    """Columns of both parts: prompt, source, prompt_ids, response_ids (ends with a stop token unless it was cut)."""

    train: datasets.Dataset
    held_out: datasets.Dataset
    facts: dict[str, Any]
    """Contents of corpus.json."""


def write_corpus(recipe: Recipe, folder: Path) -> None:
    """Writes the corpus of a recipe into `folder`; continues where an interrupted call ended.

    Raises:
        WorkbenchError: prompts are missing or unusable, their author cannot be used, or its responses are empty.
    """
    author, options = find_author(recipe), recipe.corpus
    selection = select_prompts(options, recipe.validate.suites, author.encode_prompt, recipe.seed)
    plan = {
        "options": dataclasses.asdict(options),
        "seed": recipe.seed,
        "target": author.identity,
        "target_fingerprint": author.fingerprint,
        "template_hash": author.template_hash,
        "prompts": fingerprint([item.prompt_ids for item in selection.train + selection.held_out]),
    }
    _forget_other_plan(folder, plan)
    write_json(folder / PLAN_FILE, plan)
    write_shards(plan_shards(selection, options.batch_size, folder), author.write, author.num_workers)
    facts = _collect_facts(folder, selection.counts, author, recipe)
    write_json(folder / CORPUS_FILE, facts)
    tokens = facts["response_tokens"]
    console.print(
        f"corpus: {facts['num_train']} responses to train on, {facts['num_held_out']} held out, "
        f"{tokens['mean']:.0f} tokens on average (longest {tokens['max']}), {facts['tokens_per_second']:.0f} tokens/s"
    )


def load_corpus(folder: Path) -> Corpus:
    """Reads a finished corpus."""
    if not (folder / CORPUS_FILE).is_file():
        raise WorkbenchError(f"{folder} holds no finished corpus: run the corpus stage first")
    return Corpus(
        train=datasets.Dataset(read_part(folder, "train")),
        held_out=datasets.Dataset(read_part(folder, "held_out")),
        facts=read_json(folder / CORPUS_FILE),
    )


def describe_lengths(lengths: Sequence[int]) -> dict[str, float]:
    """Statistics of sequence lengths in tokens."""
    ordered = sorted(lengths)
    return {
        "total": sum(ordered),
        "mean": round(statistics.fmean(ordered), 2),
        "min": ordered[0],
        "median": ordered[len(ordered) // 2],
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "max": ordered[-1],
    }


def _forget_other_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Removes shards of other prompts or another target: the recipe may be the same and a data set have changed."""
    path = folder / PLAN_FILE
    if path.is_file() and fingerprint(read_json(path)) != fingerprint(plan):
        console.print("corpus: the prompts or the target changed since it was interrupted, starting over")
        for shard in folder.glob("*.parquet"):
            shard.unlink()


def _collect_facts(folder: Path, counts: Sequence[SourceCount], author: Author, recipe: Recipe) -> dict[str, Any]:
    train, held_out = read_part(folder, "train"), read_part(folder, "held_out")
    shard_facts = read_shard_facts(folder)
    prompt_ids = train["prompt_ids"].to_pylist() + held_out["prompt_ids"].to_pylist()
    response_ids = train["response_ids"].to_pylist() + held_out["response_ids"].to_pylist()
    response_tokens = describe_lengths([len(ids) for ids in response_ids])
    return {
        "fingerprint": fingerprint([train["prompt_ids"].to_pylist(), train["response_ids"].to_pylist()]),
        "template_hash": author.template_hash,
        "thinking": recipe.target.thinking,
        "target": {
            "identity": author.identity,
            "revision": author.revision,
            "fingerprint": author.fingerprint,
        },
        "server": recipe.corpus.server,
        "sources": [dataclasses.asdict(count) for count in counts],
        "num_train": len(train),
        "num_held_out": len(held_out),
        "num_empty": shard_facts.num_empty,
        "num_cut": sum(response[-1] not in author.stop_ids for response in response_ids),
        "prompt_tokens": describe_lengths([len(ids) for ids in prompt_ids]),
        "response_tokens": response_tokens,
        "temperature": recipe.corpus.temperature,
        "top_p": recipe.corpus.top_p,
        "top_k": recipe.corpus.top_k,
        "dtype": recipe.corpus.dtype,
        "seconds": round(shard_facts.seconds, 1),
        "tokens_per_second": round(response_tokens["total"] / max(shard_facts.seconds, 1e-9), 1),
    }
