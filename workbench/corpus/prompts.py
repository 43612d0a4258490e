"""Prompts from the built-in generators, from a data set of the hub, or from a local file."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.corpus.instructions import generate_instructions
from workbench.corpus.problems import generate_problems
from workbench.errors import WorkbenchError
from workbench.recipe import PromptSource

PROBLEMS, INSTRUCTIONS = "problems", "instructions"
GENERATED = {PROBLEMS: "generated word problems", INSTRUCTIONS: "generated instructions"}
"""The built-in generators, by their names among the sources, and what they write."""
PROMPT_FIELDS = ("question", "problem", "prompt", "instruction", "turns", "messages", "text")
"""Columns that are taken for the prompt where a source names none, in this order."""
REFERENCE_FIELDS = ("answer", "solution", "reference")
"""Columns that are kept as the reference answer."""
DOMAIN_FIELDS = ("category", "subject", "domain")
"""Columns that are kept as what a prompt is about."""
_FILE_SUFFIXES = (".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class Prompt:
    """One user message, or the user's messages of a conversation."""

    text: str
    """The first message."""
    turns: tuple[str, ...]
    """All messages of the user, the first one included."""
    source: str
    """Name of the source it comes from."""
    reference: str | None
    """The source's own answer, if it has one."""
    domain: str | None = None
    """What it is about, if the source says."""


def load_prompts(source: PromptSource, count: int, seed: int) -> list[Prompt]:
    """The first `count` prompts of a source, fewer where it has fewer.

    Args:
        source: Where from.
        count: How many.
        seed: Of a generator; data sets and files keep their order.

    Raises:
        WorkbenchError: the source cannot be read, or no column holds prompts.
    """
    if source.prompts in GENERATED:
        return _generated_prompts(source, count, seed)
    rows = _read_rows(source)
    return [_row_prompt(source, index, rows[index]) for index in range(min(count, len(rows)))]


def shuffled_prompts(source: PromptSource, count: int, seed: int) -> Iterator[Prompt]:
    """All prompts of a data set or file in random order, or `count` of a generator's."""
    if source.prompts in GENERATED:
        yield from _generated_prompts(source, count, seed)
        return
    rows = _read_rows(source)
    order = list(range(len(rows)))
    random.Random(f"prompts {source.prompts} {seed}").shuffle(order)
    for index in order:
        yield _row_prompt(source, index, rows[index])


def _generated_prompts(source: PromptSource, count: int, seed: int) -> list[Prompt]:
    if source.split not in ("train", "test"):
        raise WorkbenchError(f"split of {source.prompts} is {source.split!r}: the generator has 'train' and 'test'")
    split = "train" if source.split == "train" else "test"
    if source.prompts == INSTRUCTIONS:
        texts = generate_instructions(split, seed, count)
        return [Prompt(text, (text,), INSTRUCTIONS, None) for text in texts]
    problems = generate_problems(split, seed, count)
    return [Prompt(problem.question, (problem.question,), PROBLEMS, problem.answer) for problem in problems]


def _read_rows(source: PromptSource) -> Sequence[dict[str, Any]] | Any:
    """Rows of a file or data set: indexable, each a dict by column."""
    path = Path(source.prompts).expanduser()
    if path.suffix in _FILE_SUFFIXES:
        rows = _read_file(path)
    elif re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source.prompts) and not path.exists():
        rows = _read_hub(source)
    else:
        raise WorkbenchError(
            f"prompts {source.prompts} are neither '{PROBLEMS}' or '{INSTRUCTIONS}', nor a file "
            f"({', '.join(_FILE_SUFFIXES)}), nor a data set of the hub (org/name)"
        )
    if not len(rows):
        raise WorkbenchError(f"prompts {source.prompts} hold no rows")
    return rows


def _read_file(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise WorkbenchError(
            f"prompts {path} do not exist: give a file, '{PROBLEMS}', '{INSTRUCTIONS}' or a data set of the hub"
        )
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet  # takes a fifth of a second that other sources need not wait for

            return pyarrow.parquet.read_table(path).to_pylist()
        if path.suffix == ".jsonl":
            rows = []
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        rows.append(_checked_row(json.loads(line), f"{path}, line {number}"))
            return rows
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list):
            raise WorkbenchError(f"prompts {path} hold no list: expected [{{...}}, {{...}}], one object a prompt")
        return [_checked_row(row, f"{path}, entry {number}") for number, row in enumerate(rows, 1)]
    except json.JSONDecodeError as error:
        place = f", line {number}" if path.suffix == ".jsonl" else f", line {error.lineno}"
        raise WorkbenchError(f"prompts {path}{place}: no valid JSON ({error.msg})") from error
    except (OSError, ValueError) as error:
        raise WorkbenchError(f"prompts {path} cannot be read: {' '.join(str(error).split())}") from error


def _checked_row(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise WorkbenchError(f"prompts {place}: expected an object with named fields, found {type(row).__name__}")
    return row


def _read_hub(source: PromptSource) -> Any:
    import datasets  # takes seconds that the other sources need not wait for
    from datasets.exceptions import DatasetsError

    try:
        return datasets.load_dataset(source.prompts, source.config, split=source.split)
    except ConnectionError as error:
        raise WorkbenchError(
            f"the hub cannot be reached for prompts {source.prompts}: check the network, "
            "or give a local .jsonl, .json or .parquet file"
        ) from error
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise WorkbenchError(f"prompts {source.prompts} cannot be loaded: {' '.join(str(error).split())}") from error


def _row_prompt(source: PromptSource, index: int, row: dict[str, Any]) -> Prompt:
    place = f"prompts {source.prompts}, row {index + 1}"
    if source.field is not None and source.field not in row:
        raise WorkbenchError(f"{place}: has no field {source.field!r}; its fields are {', '.join(row)}")
    field = source.field or next((name for name in PROMPT_FIELDS if row.get(name) is not None), None)
    if field is None:
        raise WorkbenchError(
            f"{place}: none of its fields ({', '.join(row)}) is known to hold a prompt ({', '.join(PROMPT_FIELDS)}); "
            "name it with `field`"
        )
    turns = _turns(row[field], place, field)
    if field == "instruction" and isinstance(row.get("input"), str) and row["input"].strip():
        turns = (f"{turns[0]}\n\n{row['input']}",)
    reference = next((row[name] for name in REFERENCE_FIELDS if isinstance(row.get(name), str) and name != field), None)
    domain = next((row[name] for name in DOMAIN_FIELDS if isinstance(row.get(name), str)), None)
    return Prompt(text=turns[0], turns=turns, source=source.prompts, reference=reference, domain=domain)


def _turns(value: Any, place: str, field: str) -> tuple[str, ...]:
    """The user's messages in a text, a list of texts, or a list of messages with roles."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise WorkbenchError(
            f"{place}: field {field!r} holds {type(value).__name__}, expected a text or a list of texts"
        )
    texts = [part if isinstance(part, str) else part.get("content") for part in parts if _is_users(part)]
    messages = tuple(text for text in texts if isinstance(text, str) and text.strip())
    if not messages or len(messages) < len(texts):
        raise WorkbenchError(f"{place}: field {field!r} is empty")
    return messages


def _is_users(part: Any) -> bool:
    """Whether a part of a conversation is the user's: a text, or a message with that role."""
    return isinstance(part, str) or (isinstance(part, dict) and part.get("role") == "user")
