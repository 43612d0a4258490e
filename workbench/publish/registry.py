"""The drafters that lie under a folder: what they are for, what they gain, whether they are intact."""

from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from workbench.console import progress
from workbench.errors import WorkbenchError
from workbench.files import read_json
from workbench.publish.manifest import MANIFEST_FILE, check_files
from workbench.validate import VALIDATION_FILE
from workbench.validate.table import value_of


@dataclass(frozen=True)
class RegistryEntry:
    """One published drafter."""

    folder: Path
    target: str
    layers: str
    """`8 of 10`."""
    acceptance_length: float
    """Of the asynchronous decoder on the first suite."""
    speedup: float
    date: str
    problem: str | None
    """Why it does not verify; None: every file is as it was published."""


def list_drafters(root: Path) -> list[RegistryEntry]:
    """All published drafters under `root`, newest first; not what is still being written."""
    folders = [manifest.parent for manifest in sorted(root.glob(f"**/{MANIFEST_FILE}"))]
    visible = [folder for folder in folders if not any(part.startswith(".") for part in folder.relative_to(root).parts)]
    with progress("check files", len(visible)) as advance:
        entries = []
        for folder in visible:
            entries.append(_read_entry(folder))
            advance(1, "")
    return sorted(entries, key=lambda entry: entry.date, reverse=True)


def render_drafters(entries: list[RegistryEntry]) -> Table:
    """The list as a table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("drafter", no_wrap=True)
    table.add_column("target", no_wrap=True)
    for column in ("layers", "tau", "speedup"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("date", no_wrap=True)
    table.add_column("verifies", overflow="fold", min_width=8)
    for entry in entries:
        table.add_row(
            str(entry.folder),
            entry.target,
            entry.layers,
            f"{entry.acceptance_length:.2f}",
            f"{entry.speedup:.2f}x",
            entry.date[:10],
            entry.problem or "yes",
            style="red" if entry.problem else "",
        )
    return table


def _read_entry(folder: Path) -> RegistryEntry:
    try:
        check_files(folder)
        problem = None
    except WorkbenchError as error:
        problem = str(error)
    try:
        manifest = read_json(folder / MANIFEST_FILE)
        drafter = manifest["drafter"]
        cell = next(iter(read_json(folder / VALIDATION_FILE)["methods"]["asynchronous"].values()))
        return RegistryEntry(
            folder=folder,
            target=manifest["target"]["identity"],
            layers=f"{len(drafter['kept_layers'])} of {drafter['parent_num_layers']}",
            acceptance_length=value_of(cell["acceptance_length"]),
            speedup=value_of(cell["speedup"]),
            date=manifest["date"],
            problem=problem,
        )
    except (WorkbenchError, KeyError, TypeError, StopIteration):
        unknown = float("nan")
        return RegistryEntry(folder, "?", "?", unknown, unknown, "", problem or "its manifest lacks fields")
