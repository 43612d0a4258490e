"""The files of a corpus: `train-*.parquet` and `held_out-*.parquet`, each written whole, several side by side."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch

from workbench.console import progress
from workbench.corpus.authors import Write
from workbench.corpus.selection import SelectedPrompt, Selection
from workbench.errors import WorkbenchError
from workbench.files import whole_file

_BATCHES_PER_SHARD = 4  # a kill loses at most one shard per worker; each shard ends with a shrinking batch
_MOST_EMPTY_FRACTION = 0.5  # more empty responses than that in a shard: the template or the target is wrong
_SCHEMA = pyarrow.schema(
    [
        ("prompt", pyarrow.string()),
        ("source", pyarrow.string()),
        ("prompt_ids", pyarrow.list_(pyarrow.int32())),
        ("response_ids", pyarrow.list_(pyarrow.int32())),
    ]
)


@dataclass(frozen=True)
class Shard:
    """A file of the corpus and the prompts whose responses it holds."""

    path: Path
    prompts: list[SelectedPrompt]


@dataclass(frozen=True)
class ShardFacts:
    """What the finished shards say about how they were written."""

    seconds: float
    num_empty: int


def plan_shards(selection: Selection, batch_size: int, folder: Path) -> list[Shard]:
    """Cuts both parts into shards of about four batches, an even number of them, all of one size: two cores share."""
    shards = []
    for part, prompts in (("held_out", selection.held_out), ("train", selection.train)):
        num_shards = 2 * -(-len(prompts) // (2 * _BATCHES_PER_SHARD * batch_size))
        shard_size = -(-len(prompts) // num_shards)
        for number, start in enumerate(range(0, len(prompts), shard_size)):
            shards.append(Shard(folder / f"{part}-{number:05}.parquet", prompts[start : start + shard_size]))
    return shards


def write_shards(shards: Sequence[Shard], write: Write, num_workers: int) -> None:
    """Writes the shards that are not there yet.

    Args:
        shards: All of them.
        write: Called from several threads.
        num_workers: Threads.

    Raises:
        WorkbenchError: most responses of a shard are empty.
    """
    missing = [shard for shard in shards if not shard.path.is_file()]
    num_threads = max(1, torch.get_num_threads() // num_workers)
    with progress("corpus: responses", sum(len(shard.prompts) for shard in shards)) as advance:
        if len(missing) < len(shards):
            advance(sum(len(shard.prompts) for shard in shards if shard not in missing), "written before")
        report = _Report(advance)

        def work(shard: Shard) -> None:
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


class _Report:
    """Progress of all shards together; ends the other threads when one has failed."""

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


def _write_shard(shard: Shard, responses: list[list[int]], seconds: float) -> None:
    answered = list(zip(shard.prompts, responses, strict=True))
    # A response of one token is a stop token alone: nothing to learn from.
    empty = [item.prompt.text for item, response in answered if len(response) < 2]
    if len(empty) > _MOST_EMPTY_FRACTION * len(answered):
        raise WorkbenchError(
            f"the target answers {len(empty)} of {len(answered)} prompts with nothing, the first is "
            f"{empty[0][:80]!r}: check its chat template and corpus.sources"
        )
    rows = [
        {
            "prompt": item.prompt.text,
            "source": item.prompt.source,
            "prompt_ids": item.prompt_ids,
            "response_ids": response,
        }
        for item, response in answered
        if len(response) >= 2
    ]
    facts = {"seconds": f"{seconds:.3f}", "num_empty": str(len(empty))}
    table = pyarrow.Table.from_pylist(rows, schema=_SCHEMA.with_metadata(facts))
    with whole_file(shard.path) as temporary:
        pyarrow.parquet.write_table(table, temporary)


def read_part(folder: Path, part: str) -> pyarrow.Table:
    """All rows of `train` or `held_out`."""
    try:
        tables = [pyarrow.parquet.read_table(path) for path in sorted(folder.glob(f"{part}-*.parquet"))]
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise WorkbenchError(f"{folder} holds a broken corpus: {' '.join(str(error).split())}") from error
    if not tables:
        raise WorkbenchError(f"{folder} holds no {part} responses: run the corpus stage again")
    return pyarrow.concat_tables(table.replace_schema_metadata(None) for table in tables)


def read_shard_facts(folder: Path) -> ShardFacts:
    """Sums over all shards."""
    facts = [pyarrow.parquet.read_schema(path).metadata for path in folder.glob("*.parquet")]
    return ShardFacts(
        seconds=sum(float(entry[b"seconds"]) for entry in facts),
        num_empty=sum(int(entry[b"num_empty"]) for entry in facts),
    )
