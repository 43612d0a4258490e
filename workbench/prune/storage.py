"""Where studies live, and who works on which trial.

A worker holds a lock on a file of its own for as long as it lives; the kernel lets go of it however the worker ends.
So a trial that runs under the name of a file that nobody locks was abandoned, and is queued again.
"""

import contextlib
import fcntl
import importlib
import os
import re
import uuid
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from workbench.console import console
from workbench.errors import WorkbenchError
from workbench.targets import first_line

OWNER = "owner"
"""Attribute of a trial: the claim of the worker that evaluates it."""
PROMOTED = "promoted"
"""Attribute of a queued trial that goes to the precise rung whatever the pruner says."""


def default_storage(folder: Path, num_workers: int) -> str:
    """URL of the storage in a run folder: SQLite for one process, a journal for several and where there is one."""
    journal = folder.resolve() / "studies.journal"
    if num_workers == 1 and not journal.is_file():
        return f"sqlite:///{folder.resolve() / 'studies.db'}"
    return f"journal:///{journal}"


def check_storage(url: str, num_workers: int) -> None:
    """Opens the storage once, and refuses SQLite for several processes."""
    if num_workers > 1 and url.startswith("sqlite"):
        raise WorkbenchError(
            f"prune.storage {url} is SQLite, which several workers must not share: use journal:///FILE or one worker"
        )
    open_storage(url)


def open_storage(url: str) -> BaseStorage:
    """Opens (or creates) a storage.

    Raises:
        WorkbenchError: it cannot be reached, or its driver is not installed.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    shown = without_password(url)
    try:
        if url.startswith("journal://"):
            path = Path(url.removeprefix("journal://"))
            path.parent.mkdir(parents=True, exist_ok=True)
            return JournalStorage(JournalFileBackend(str(path)))
        if url.startswith("sqlite:///"):
            Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        return RDBStorage(url)
    except ImportError as error:
        raise WorkbenchError(f"prune.storage {shown} needs a driver that is not installed: {error}") from error
    except Exception as error:  # every backend has errors of its own
        raise WorkbenchError(
            f"prune.storage {shown} cannot be opened ({without_password(first_line(error))}): start it, or use "
            "sqlite:///FILE, journal:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
        ) from error


def serve_dashboard(url: str | None, folder: Path, port: int) -> None:
    """Serves the studies of a search until it is interrupted.

    Args:
        url: Of the storage; None: the one in the run folder.
        folder: Of the search.
        port: On this machine alone.

    Raises:
        WorkbenchError: there are no studies yet, or optuna-dashboard is not installed.
    """
    if url is None:
        if not any((folder / name).is_file() for name in ("studies.journal", "studies.db")):
            raise WorkbenchError(f"{folder} holds no studies: run `prune` first")
        url = default_storage(folder, 1)
    try:
        optuna_dashboard = importlib.import_module("optuna_dashboard")
    except ImportError as error:
        raise WorkbenchError(
            "optuna-dashboard is not installed: .venv/bin/python -m pip install -c constraints.txt -e '.[dashboard]'"
        ) from error
    storage = open_storage(url)
    console.print(f"studies of {without_password(url)} at http://localhost:{port}, Ctrl-C ends it", markup=False)
    optuna_dashboard.run_server(storage, host="localhost", port=port)


def without_password(text: str) -> str:
    """A URL (or a text with one) as it may be shown."""
    return re.sub(r"(//[^:/@\s]+):[^@/\s]+@", r"\1:***@", text)


class Claim:
    """This process's lock in the folder `claims`; use as a context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / uuid.uuid4().hex
        self._handle = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    @property
    def name(self) -> str:
        """What trials are marked with."""
        return self.path.name

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def is_abandoned(folder: Path, name: str) -> bool:
    """True where the process that made this claim has ended; a claim from elsewhere is left alone."""
    path = folder / name
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def requeue_abandoned(study: optuna.Study, claims: Path) -> int:
    """Queues the trials of workers that were killed again, and closes them; returns how many there were."""
    count = 0
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        owner = trial.user_attrs.get(OWNER)
        if owner is not None and not is_abandoned(claims, owner):
            continue
        point: dict[str, Any] = trial.params or trial.system_attrs.get("fixed_params", {})
        # Queued before it is closed: a kill in between costs a repetition, not a trial.
        if point:
            study.enqueue_trial(point, user_attrs={PROMOTED: trial.user_attrs.get(PROMOTED, False)})
        with contextlib.suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):
            study.tell(trial.number, state=TrialState.FAIL)
        count += 1
    return count


@contextlib.contextmanager
def sole_search(folder: Path) -> Any:
    """Keeps a second search out of the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "search.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WorkbenchError(f"another search works in {folder}: wait for it, or give it more workers") from error
        yield
