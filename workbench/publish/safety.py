"""Nothing in a drafter's folder may run code: no pickle, no script, no configuration that asks for one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.files import read_json

UNSAFE_SUFFIXES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".py", ".so"}
"""Files that could run code when loaded; a drafter needs none of them."""
UNSAFE_KEYS = {"auto_map", "trust_remote_code", "custom_pipelines"}
"""Keys of a configuration by which libraries find code to run."""


def refuse_code(folder: Path) -> None:
    """Refuses a folder with files or configurations that could run code when they are loaded.

    Raises:
        WorkbenchError: one line that names the file, and the key where it is one.
    """
    unsafe = sorted(path.name for path in folder.rglob("*") if path.suffix.lower() in UNSAFE_SUFFIXES)
    if unsafe:
        raise WorkbenchError(f"{folder} holds {', '.join(unsafe)}: a drafter is safetensors, JSON and text only")
    for path in sorted(folder.glob("*config*.json")):
        keys = UNSAFE_KEYS.intersection(_keys(read_json(path)))
        if keys:
            raise WorkbenchError(
                f"{path} has the key {min(keys)}, which asks for code to be run: a drafter needs none, do not load it"
            )


def _keys(value: Any) -> Iterator[str]:
    """All keys within a JSON value."""
    if isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)
