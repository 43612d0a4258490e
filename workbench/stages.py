"""The stages of a run: which needs what, what is finished, what continues, what starts over.

A stage owns the folder `runs/<recipe>/<stage>/`. Before it works, `inputs.json` says what it works from; after it has
worked, `stage.json` says the same, that it is finished and how long it took. So a stage whose inputs are those of its
`stage.json` is skipped, one whose inputs are those of its `inputs.json` continues from what it left, and any other
starts over.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench import launch
from workbench.console import console, render_duration
from workbench.errors import WorkbenchError
from workbench.files import content_fingerprint, read_json, remove_leftovers, write_json
from workbench.recipe import PromptSource, Recipe
from workbench.targets import resolve_source

INPUTS_FILE = "inputs.json"
STAGE_FILE = "stage.json"
LOCK_FILE = ".lock"
_NO_ROOM_OR_RIGHT = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}
_TARGET_TEXT_OPTIONS = ("target.model", "target.revision", "target.tokenizer", "target.thinking")
_PLACE_OPTIONS = {"device", "workers"}  # where a stage runs is no input of it


@dataclass(frozen=True)
class Stage:
    """One stage."""

    name: str
    work: Callable[[Recipe, Path], object]
    """Gets the recipe and the run folder; writes into its own folder of it; continues from what it finds there."""
    needs: tuple[str, ...]
    """Earlier stages whose results it reads."""
    options: tuple[str, ...]
    """Recipe keys, or `section.key`, that change its result."""
    files: Callable[[Recipe], list[str]]
    """Models and files outside the run folder that it reads, as the recipe names them."""
    results: Callable[[Recipe, Path], list[Path]]
    """Files without which it is not finished, whatever `stage.json` says."""
    facts: Callable[[Recipe], dict[str, Any]] = lambda recipe: {}
    """What else of the recipe changes its result, by a name that a user understands."""
    copied: tuple[str, ...] = ()
    """Results that are copied to the top of the run folder."""
    uses: tuple[str, ...] = ()
    """Stages whose results it reads where they are finished, and does without where they are not."""
    on_request: bool = False
    """No part of a run: it has a command of its own."""
    check: Callable[[Recipe], object] | None = None
    """Refuses what it could never do, before any stage of a run starts."""


def _write_corpus(recipe: Recipe, run_folder: Path) -> None:
    from workbench.corpus.responses import write_corpus  # here and below: one stage need not wait for all others

    write_corpus(recipe, run_folder / "corpus")


def _distill(recipe: Recipe, run_folder: Path) -> None:
    from workbench.distill.fit import distill

    distill(recipe, run_folder / "corpus", run_folder / "distill")


def _prune(recipe: Recipe, run_folder: Path) -> None:
    from workbench.prune.search import search

    search(recipe, run_folder / "corpus", run_folder / "distill", run_folder / "prune")


def _dflash(recipe: Recipe, run_folder: Path) -> None:
    from workbench.distill.dflash import distill_dflash

    seconds = max(training_seconds(run_folder).values())
    distill_dflash(recipe, run_folder / "corpus", run_folder / "dflash", seconds)


def _check_search(recipe: Recipe) -> None:
    from workbench.prune.request import check_recipe

    check_recipe(recipe)


def _validate(recipe: Recipe, run_folder: Path) -> None:
    from workbench.validate import validate
    from workbench.validate.report import write_report

    drafters = candidate_folders(run_folder)
    if is_finished(recipe, STAGES["dflash"]):
        drafters["dflash"] = run_folder / "dflash" / "drafter"
    validate(recipe, drafters, run_folder / "validate", training_seconds(run_folder))
    write_report(run_folder)


def _publish(recipe: Recipe, run_folder: Path) -> None:
    from workbench.publish import publish

    publish(recipe, run_folder, run_folder / "prune" / "drafter", published_folder(recipe))


def _check_published(recipe: Recipe) -> None:
    from workbench.publish.folder import check_folder

    check_folder(published_folder(recipe), recipe.name)


def stage_seconds(run_folder: Path) -> dict[str, float | None]:
    """How long each finished stage took; None for one that was interrupted."""
    records = {name: _read(run_folder / name / STAGE_FILE) for name in STAGES}
    return {name: record.get("seconds") for name, record in records.items() if record is not None}


def candidate_folders(run_folder: Path) -> dict[str, Path]:
    """Drafters to validate: the winner of the search, and the unpruned one where that is another."""
    winner, unpruned = run_folder / "prune" / "drafter", run_folder / "prune" / "unpruned"
    layers = [read_json(folder / "config.json")["drafter"]["kept_layers"] for folder in (winner, unpruned)]
    return {"unpruned": winner} if layers[0] == layers[1] else {"pruned": winner, "unpruned": unpruned}


def training_seconds(run_folder: Path) -> dict[str, float]:
    """Seconds of training that went into the drafters of `candidate_folders`, healing included."""
    distilled = read_json(run_folder / "distill" / "distill.json")["seconds"]
    lineage = read_json(run_folder / "prune" / "search.json")["chosen"].get("lineage", {})
    healed = distilled + lineage.get("heal_s", 0.0)
    folders = candidate_folders(run_folder)
    return {name: healed if index == 0 else distilled for index, name in enumerate(folders)}


def published_folder(recipe: Recipe) -> Path:
    """Where the recipe's drafter is published."""
    return Path(recipe.publish.folder or f"checkpoints/{recipe.name}")


def _prompt_files(sources: Sequence[PromptSource]) -> list[str]:
    return [source.prompts for source in sources if Path(source.prompts).expanduser().is_file()]


def _suite_files(recipe: Recipe) -> list[str]:
    return _prompt_files([suite.source for suite in recipe.validate.suites])


def _parent(recipe: Recipe) -> list[str]:
    return [] if recipe.drafter.parent == "target" else [recipe.drafter.parent]


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            "corpus",
            _write_corpus,
            needs=(),
            options=(*_TARGET_TEXT_OPTIONS, "corpus", "seed"),
            facts=lambda recipe: {"the sources of validate.suites": [asdict(s.source) for s in recipe.validate.suites]},
            files=lambda recipe: [recipe.target.model, *_prompt_files(recipe.corpus.sources), *_suite_files(recipe)],
            results=lambda recipe, folder: [folder / "corpus.json"],
        ),
        Stage(
            "distill",
            _distill,
            needs=("corpus",),
            options=("target", "drafter", "distill", "decode.draft_length", "seed"),
            files=lambda recipe: [recipe.target.model, *_parent(recipe)],
            results=lambda recipe, folder: [folder / "distill.json", folder / "drafter" / "config.json"],
        ),
        Stage(
            "prune",
            _prune,
            needs=("corpus", "distill"),
            options=("target", "distill", "prune", "decode", "seed"),
            files=lambda recipe: [recipe.target.model],
            results=lambda recipe, folder: [folder / "search.json", folder / "drafter" / "config.json"],
            copied=("search.json",),
            check=_check_search,
        ),
        Stage(
            "dflash",
            _dflash,
            needs=("corpus", "distill", "prune"),
            options=("target", "drafter", "distill", "dflash", "seed"),
            files=lambda recipe: [recipe.target.model],
            results=lambda recipe, folder: [folder / "dflash.json", folder / "drafter" / "config.json"],
            on_request=True,
        ),
        Stage(
            "validate",
            _validate,
            needs=("prune",),
            uses=("dflash",),
            options=("target", "decode", "validate", "seed"),
            files=lambda recipe: [recipe.target.model, *_suite_files(recipe)],
            results=lambda recipe, folder: [folder / "validation.json"],
            copied=("validation.json",),
        ),
        Stage(
            "publish",
            _publish,
            needs=("prune", "validate"),
            options=("target", "decode", "publish", "seed"),
            files=lambda recipe: [recipe.target.model],
            results=lambda recipe, folder: [published_folder(recipe) / "workbench.json"],
            check=_check_published,
        ),
    )
}


def run_stages(recipe: Recipe, names: Sequence[str], stages: Mapping[str, Stage] = STAGES) -> None:
    """Brings the named stages, in this order, to their end; what they need beside them must be finished.

    Raises:
        WorkbenchError: another process works in the run folder, a needed stage is not finished, or a stage fails for
            a reason that the user can mend.
    """
    with _clear_file_errors(recipe.run_folder):
        if launch.rank():
            _follow(recipe, names, stages)
            return
        for name in names:
            if check := stages[name].check:
                check(recipe)
        with sole_process(recipe.run_folder):
            for name in names:
                _run_stage(recipe, stages[name], stages)


def _run_stage(recipe: Recipe, stage: Stage, stages: Mapping[str, Stage]) -> None:
    folder = recipe.run_folder / stage.name
    inputs = stage_inputs(recipe, stage, stages)
    finished, begun = _read(folder / STAGE_FILE), _read(folder / INPUTS_FILE)
    continues = False
    if finished is not None:
        changes = name_changes(finished["inputs"], inputs)
        missing = [path for path in stage.results(recipe, folder) if not path.is_file()]
        if not changes and not missing:
            console.print(f"{stage.name}: finished, inputs unchanged")
            launch.announce(stage.name, works=False)
            return
        reason = f"{', '.join(changes)} changed" if changes else f"{missing[0]} is gone"
        console.print(f"{stage.name}: {reason} since it finished, starting over")
        _clear(recipe, stage)
    elif begun is not None:
        changes = name_changes(begun, inputs)
        if changes:
            console.print(f"{stage.name}: {', '.join(changes)} changed since it was interrupted, starting over")
            _clear(recipe, stage)
        else:
            continues = True
            console.print(f"{stage.name}: was interrupted, continues")
            for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
                remove_leftovers(path, "*")
    else:
        console.print(f"{stage.name}: starts")
        _clear(recipe, stage)
    write_json(folder / INPUTS_FILE, inputs)
    launch.announce(stage.name, works=True)
    started_s = time.monotonic()
    stage.work(recipe, recipe.run_folder)
    for name in stage.copied:
        write_json(recipe.run_folder / name, read_json(folder / name))
    seconds = time.monotonic() - started_s
    write_json(
        folder / STAGE_FILE,
        # Of a stage that was interrupted, the time before is not known.
        {"inputs": inputs, "result": uuid.uuid4().hex, "seconds": None if continues else round(seconds, 1)},
    )
    console.print(f"{stage.name}: finished after {render_duration(seconds)}")


def _follow(recipe: Recipe, names: Sequence[str], stages: Mapping[str, Stage]) -> None:
    """What processes beside the first do in training on several devices: only the distillation, and no bookkeeping."""
    if "distill" not in names or not launch.joins("distill"):
        return
    console.quiet = True
    try:
        stages["distill"].work(recipe, recipe.run_folder)
    finally:
        console.quiet = False


def stage_inputs(recipe: Recipe, stage: Stage, stages: Mapping[str, Stage]) -> dict[str, Any]:
    """Everything that a stage's result depends on, flat, by a name that a user understands.

    Raises:
        WorkbenchError: a stage that it needs is not finished for this recipe.
    """
    values = recipe.as_dict()
    inputs: dict[str, Any] = {}
    for key in stage.options:
        section, _, name = key.partition(".")
        value = values[section][name] if name else values[section]
        if isinstance(value, dict):
            inputs |= {f"{section}.{name}": item for name, item in value.items() if name not in _PLACE_OPTIONS}
        else:
            inputs[key] = value
    inputs |= stage.facts(recipe)
    for name in stage.files(recipe):
        path = Path(name).expanduser()
        inputs[f"the content of {name}"] = content_fingerprint(path) if path.exists() else resolve_source(name)
    for name in stage.needs:
        folder = recipe.run_folder / name
        record = _read(folder / STAGE_FILE)
        if record is None:
            raise WorkbenchError(
                f"{stage.name} needs the {name} stage, which is not finished in {folder}: run `{name}` first"
            )
        changes = name_changes(record["inputs"], stage_inputs(recipe, stages[name], stages))
        if changes:
            raise WorkbenchError(
                f"{stage.name} needs the {name} stage, but {', '.join(changes)} changed since that finished: "
                f"run `{name}` again"
            )
        inputs[f"the result of {name}"] = record["result"]
    for name in stage.uses:
        if is_finished(recipe, stages[name], stages):
            inputs[f"the result of {name}"] = read_json(recipe.run_folder / name / STAGE_FILE)["result"]
    return inputs


def is_finished(recipe: Recipe, stage: Stage, stages: Mapping[str, Stage] = STAGES) -> bool:
    """Whether a stage's results are there, and are those of this recipe."""
    folder = recipe.run_folder / stage.name
    record = _read(folder / STAGE_FILE)
    if record is None or not all(path.is_file() for path in stage.results(recipe, folder)):
        return False
    try:
        return record["inputs"] == stage_inputs(recipe, stage, stages)
    except WorkbenchError:  # a stage that it needs was begun anew
        return False


def name_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of inputs that differ; a short value is shown."""
    changes = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old != new:
            is_short = "." in name and len(f"{old}{new}") < 40 and not name.startswith("the ")
            changes.append(f"{name} ({old} -> {new})" if is_short else name)
    return changes


@contextlib.contextmanager
def sole_process(run_folder: Path) -> Iterator[None]:
    """Refuses a second process in the same run folder; the lock dies with its process."""
    run_folder.mkdir(parents=True, exist_ok=True)
    with (run_folder / LOCK_FILE).open("a+") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise WorkbenchError(
                f"{run_folder} is in use by process {owner}: wait until it ends, or override the recipe's name"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextlib.contextmanager
def _clear_file_errors(folder: Path) -> Iterator[None]:
    """Turns a full disk and missing rights into one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM_OR_RIGHT:
            raise
        place = error.filename or folder
        raise WorkbenchError(f"cannot write {place}: {error.strerror}; free space or check permissions") from error
    except RuntimeError as error:
        # safetensors and torch.save report a full disk with exceptions of their own.
        if not any(sign in str(error) for sign in ("No space left on device", "failed writing file")):
            raise
        raise WorkbenchError(f"cannot write into {folder}: no space left on device; free space") from error


def _read(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


def _clear(recipe: Recipe, stage: Stage) -> None:
    """Empties a stage's folder in one step, so that a kill leaves no half of it; forgets the copies of its results."""
    folder = recipe.run_folder / stage.name
    retired = recipe.run_folder / f".{stage.name}.old"
    if retired.exists():
        shutil.rmtree(retired)
    for name in stage.copied:
        (recipe.run_folder / name).unlink(missing_ok=True)
    if folder.exists():
        os.replace(folder, retired)
        shutil.rmtree(retired)
    folder.mkdir(parents=True)
