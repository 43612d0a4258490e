"""Files and folders that appear whole or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; renames it into place when the block ends without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    os.chmod(name, 0o644)
    temporary = Path(name)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise WorkbenchError(
            f"cannot write {path}: {error.strerror or error}; free space or check permissions"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `path`; it takes the place of `path` when the block ends without error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    os.chmod(temporary, 0o755)
    try:
        yield temporary
        if path.exists():
            retired = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".old"))
            os.replace(path, retired / path.name)
            os.replace(temporary, path)
            shutil.rmtree(retired)
        else:
            os.replace(temporary, path)
    except OSError as error:
        raise WorkbenchError(
            f"cannot write {path}: {error.strerror or error}; free space or check permissions"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Removes what killed processes left half-written of matching files and folders; nobody may be writing them."""
    for suffix in ("part", "old"):
        for path in list(folder.glob(f".{pattern}.*.{suffix}")):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads JSON; a missing or broken file is a WorkbenchError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WorkbenchError(f"{path} does not exist") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WorkbenchError(f"{path} is no valid JSON: {error}") from error


def fingerprint(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of a JSON-serialisable value, independent of key order."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes in hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


_MODEL_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".safetensors", ".bin", ".gguf")
_SAMPLE_BYTES = 2**20


def content_fingerprint(path: Path) -> str:
    """Changes with the content of a file, or of the files of a model folder; reads no more than 2 MiB of each."""
    if path.is_dir():
        parts = {file.name: content_fingerprint(file) for file in path.iterdir() if file.suffix in _MODEL_SUFFIXES}
        return fingerprint(parts)
    size = path.stat().st_size
    with path.open("rb") as handle:
        digest = hashlib.sha256(handle.read(_SAMPLE_BYTES))
        handle.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(handle.read())
    return fingerprint([size, digest.hexdigest()])
