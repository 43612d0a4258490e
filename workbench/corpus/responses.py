"""The corpus: responses that the target itself writes to the selected prompts, in resumable shards.

A corpus folder holds `train-*.parquet` and `held_out-*.parquet`, each written whole, `plan.json` with what the shards
were started for, and `corpus.json`, written last.
"""

import dataclasses
import hashlib
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import torch

from workbench.console import console, progress
from workbench.corpus.generation import generate_responses
from workbench.corpus.selection import SelectedPrompt, Selection, select_prompts
from workbench.errors import WorkbenchError
from workbench.files import fingerprint, read_json, whole_file, write_json
from workbench.recipe import Recipe
from workbench.targets import Target, load_target

_BATCHES_PER_SHARD = 8  # a kill loses at most one shard; each shard ends with a shrinking batch
_MOST_WORKERS = 4  # more share their cores: each has keys and values of its own
_MOST_EMPTY_FRACTION = 0.5  # more empty responses than that in a shard: the template or the target is wrong
_SCHEMA = pyarrow.schema(
    [
        ("prompt", pyarrow.string()),
        ("source", pyarrow.string()),
        ("prompt_ids", pyarrow.list_(pyarrow.int32())),
        ("response_ids", pyarrow.list_(pyarrow.int32())),
    ]
)

Writer = Callable[[list[SelectedPrompt], Callable[[int, int], None]], list[list[int]]]
"""Writes the responses to a shard's prompts; reports finished responses and tokens as it goes."""


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
        WorkbenchError: prompts are missing or unusable, the target cannot be loaded, or its responses are empty.
    """
    target = load_target(recipe.target, dtype=recipe.corpus.dtype)
    options = recipe.corpus
    selection = select_prompts(options, recipe.validate.suites, target.encode_prompt, recipe.seed)
    plan = {
        "options": dataclasses.asdict(options),
        "seed": recipe.seed,
        "target": target.identity,
        "target_fingerprint": target.fingerprint,
        "template_hash": target.template_hash,
        "prompts": fingerprint([item.prompt_ids for item in selection.train + selection.held_out]),
    }
    if _is_other_plan(folder, plan):
        console.print("corpus: the prompts or the target changed since it was interrupted, starting over")
        shutil.rmtree(folder)
    write_json(folder / "plan.json", plan)
    num_workers = choose_num_workers(torch.get_num_threads(), target.model.device.type == "cpu")
    _write_shards(plan_shards(selection, options.batch_size, folder), _local_writer(target, recipe), num_workers)
    facts = _collect_facts(folder, selection, target, recipe)
    write_json(folder / "corpus.json", facts)
    tokens = facts["response_tokens"]
    console.print(
        f"corpus: {facts['num_train']} responses to train on, {facts['num_held_out']} held out, "
        f"{tokens['mean']:.0f} tokens on average (longest {tokens['max']}), {facts['tokens_per_second']:.0f} tokens/s"
    )


def load_corpus(folder: Path) -> Corpus:
    """Reads a finished corpus."""
    if not (folder / "corpus.json").is_file():
        raise WorkbenchError(f"{folder} holds no finished corpus: run the corpus stage first")
    facts = read_json(folder / "corpus.json")
    return Corpus(
        datasets.Dataset(_read_part(folder, "train")), datasets.Dataset(_read_part(folder, "held_out")), facts
    )


def _is_other_plan(folder: Path, plan: dict[str, Any]) -> bool:
    return (folder / "plan.json").is_file() and fingerprint(read_json(folder / "plan.json")) != fingerprint(plan)


def _local_writer(target: Target, recipe: Recipe) -> Writer:
    options = recipe.corpus

    def write(prompts: list[SelectedPrompt], on_finished: Callable[[int, int], None]) -> list[list[int]]:
        return generate_responses(
            target.model,
            [item.prompt_ids for item in prompts],
            options.max_new_tokens,
            target.stop_ids,
            pad_id=min(target.stop_ids, default=0),
            batch_size=options.batch_size,
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=_shard_seed(recipe.seed, prompts),
            on_finished=on_finished,
        )

    return write


def _shard_seed(seed: int, prompts: Sequence[SelectedPrompt]) -> int:
    """Seed of a shard's draws: from its prompts, so that it does not matter which shards were written before."""
    text = "\n".join(item.prompt.text for item in prompts)
    return int.from_bytes(hashlib.sha256(f"{seed}\n{text}".encode()).digest()[:4], "big")


@dataclass(frozen=True)
class _Shard:
    """A file of the corpus and the prompts whose responses it holds."""

    path: Path
    prompts: list[SelectedPrompt]


class _Report:
    """Progress of all shards together; tells the other threads when one has failed."""

    def __init__(self, advance: Callable[[int, str], None]):
        self.advance = advance
        self.lock = threading.Lock()
        self.is_over = False
        self.num_tokens = 0
        self.start_s = time.monotonic()

    def __call__(self, num_responses: int, num_tokens: int) -> None:
        if self.is_over:
            raise InterruptedError("another shard failed")
        with self.lock:
            self.num_tokens += num_tokens
            self.advance(num_responses, f"{self.num_tokens / (time.monotonic() - self.start_s):.0f} tokens/s")


def plan_shards(selection: Selection, batch_size: int, folder: Path) -> list[_Shard]:
    """Cuts both parts into shards of about eight batches, an even number of them, all of one size: two cores share."""
    shards = []
    for part, prompts in (("held_out", selection.held_out), ("train", selection.train)):
        num_shards = 2 * -(-len(prompts) // (2 * _BATCHES_PER_SHARD * batch_size))
        shard_size = -(-len(prompts) // num_shards)
        for number, start in enumerate(range(0, len(prompts), shard_size)):
            shards.append(_Shard(folder / f"{part}-{number:05}.parquet", prompts[start : start + shard_size]))
    return shards


def _write_shards(shards: list[_Shard], write: Writer, num_workers: int) -> None:
    """Writes the shards that are not there yet, several side by side."""
    missing = [shard for shard in shards if not shard.path.is_file()]
    num_threads = max(1, torch.get_num_threads() // num_workers)
    with progress("corpus: responses", sum(len(shard.prompts) for shard in shards)) as advance:
        if len(missing) < len(shards):
            advance(sum(len(shard.prompts) for shard in shards if shard not in missing), "written before")
        report = _Report(advance)

        def work(shard: _Shard) -> None:
            torch.set_num_threads(num_threads)  # of this Python thread alone
            start_s = time.monotonic()
            responses = write(shard.prompts, report)
            # The workers share the time that passes.
            _write_shard(shard, responses, (time.monotonic() - start_s) / num_workers)

        with ThreadPoolExecutor(num_workers) as executor:
            futures = [executor.submit(work, shard) for shard in missing]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                report.is_over = True
                executor.shutdown(cancel_futures=True)
                raise


def choose_num_workers(num_cores: int, is_on_cpu: bool) -> int:
    """Batches that are generated side by side.

    Matrices of a small model are too small to share: on 2 cores, two batches of one thread each are faster than one of
    two threads. A GPU works on one batch.
    """
    return min(num_cores, _MOST_WORKERS) if is_on_cpu else 1


def _write_shard(shard: _Shard, responses: list[list[int]], seconds: float) -> None:
    prompts = shard.prompts
    # A response of one token is a stop token alone: nothing to learn from.
    empty = [item.prompt.text for item, response in zip(prompts, responses, strict=True) if len(response) < 2]
    if len(empty) > _MOST_EMPTY_FRACTION * len(prompts):
        raise WorkbenchError(
            f"the target answers {len(empty)} of {len(prompts)} prompts with nothing, the first is {empty[0][:80]!r}: "
            "check its chat template and corpus.sources"
        )
    rows = [
        {
            "prompt": item.prompt.text,
            "source": item.prompt.source,
            "prompt_ids": item.prompt_ids,
            "response_ids": response,
        }
        for item, response in zip(prompts, responses, strict=True)
        if len(response) >= 2
    ]
    shard_facts = {"seconds": f"{seconds:.3f}", "num_empty": str(len(empty))}
    table = pyarrow.Table.from_pylist(rows, schema=_SCHEMA.with_metadata(shard_facts))
    with whole_file(shard.path) as temporary:
        pyarrow.parquet.write_table(table, temporary)


def _read_part(folder: Path, part: str) -> pyarrow.Table:
    try:
        tables = [pyarrow.parquet.read_table(path) for path in sorted(folder.glob(f"{part}-*.parquet"))]
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise WorkbenchError(f"{folder} holds a broken corpus: {' '.join(str(error).split())}") from error
    if not tables:
        raise WorkbenchError(f"{folder} holds no {part} responses: run the corpus stage again")
    return pyarrow.concat_tables(table.replace_schema_metadata(None) for table in tables)


def _collect_facts(folder: Path, selection: Selection, target: Target, recipe: Recipe) -> dict[str, Any]:
    train, held_out = _read_part(folder, "train"), _read_part(folder, "held_out")
    shard_facts = [
        pyarrow.parquet.read_schema(path).metadata
        for part in ("train", "held_out")
        for path in sorted(folder.glob(f"{part}-*.parquet"))
    ]
    seconds = sum(float(facts[b"seconds"]) for facts in shard_facts)
    prompt_ids = train["prompt_ids"].to_pylist() + held_out["prompt_ids"].to_pylist()
    response_ids = train["response_ids"].to_pylist() + held_out["response_ids"].to_pylist()
    num_tokens = sum(map(len, response_ids))
    return {
        "fingerprint": fingerprint([train["prompt_ids"].to_pylist(), train["response_ids"].to_pylist()]),
        "template_hash": target.template_hash,
        "thinking": target.thinking,
        "target": {
            "identity": target.identity,
            "revision": target.revision,
            "fingerprint": target.fingerprint,
        },
        "sources": [dataclasses.asdict(count) for count in selection.counts],
        "num_train": len(train),
        "num_held_out": len(held_out),
        "num_empty": sum(int(facts[b"num_empty"]) for facts in shard_facts),
        "num_cut": sum(response[-1] not in target.stop_ids for response in response_ids),
        "prompt_tokens": describe_lengths([len(ids) for ids in prompt_ids]),
        "response_tokens": describe_lengths([len(ids) for ids in response_ids]),
        "temperature": recipe.corpus.temperature,
        "top_p": recipe.corpus.top_p,
        "top_k": recipe.corpus.top_k,
        "dtype": recipe.corpus.dtype,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(num_tokens / max(seconds, 1e-9), 1),
    }


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
