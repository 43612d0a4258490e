"""The manifest `workbench.json`: what a published drafter was made from, and the hash of every file beside it.

The manifest seals itself too: `manifest_sha256` is the hash of its own bytes with that field filled with zeros, so a
change of any byte of any file is noticed.
"""

import hashlib
import json
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

from workbench.drafter.model import Drafter
from workbench.errors import WorkbenchError
from workbench.files import read_json, sha256_of_file, write_text
from workbench.prune.storage import without_password
from workbench.publish.lineage import read_lineage
from workbench.recipe import Recipe
from workbench.validate.machine import describe_hardware, describe_versions
from workbench.validate.timing import read_date

MANIFEST_FILE = "workbench.json"
SCHEMA_VERSION = 1

_ZEROS = "0" * 64
_HUB_FILES = {".gitattributes", ".cache", ".git"}
"""What the hub and git put beside the files of a repository; nothing of it is ever loaded."""


def build_manifest(
    recipe: Recipe, drafter: Drafter, licence: str, run_folder: Path, verification: dict[str, Any]
) -> dict[str, Any]:
    """Everything that is needed to rebuild a drafter, without the files' hashes.

    Args:
        recipe: As resolved.
        drafter: What is published.
        licence: Its own, inherited.
        run_folder: Holds the corpus's facts and the reports of distillation and search.
        verification: Prompts and acceptance length that `verify` repeats.
    """
    spec = drafter.spec
    kept = set(spec.kept_layers)
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "name": recipe.name,
        "date": read_date(),
        "code": describe_code(),
        "target": {
            "identity": spec.target,
            "revision": spec.target_revision,
            "fingerprint": spec.target_fingerprint,
            "template_hash": spec.template_hash,
            "thinking": spec.thinking,
        },
        "drafter": {
            "parent": spec.parent,
            "parent_num_layers": spec.parent_num_layers,
            "kept_layers": spec.kept_layers,
            "dropped_layers": [layer for layer in range(spec.parent_num_layers) if layer not in kept],
            "block_size": spec.block_size,
            "block_attention": spec.block_attention,
            "mask_token_id": spec.mask_token_id,
            "num_parameters": drafter.model.num_parameters(),
        },
        "seed": recipe.seed,
        "licence": licence,
        "recipe": _shareable_recipe(recipe),
        "verification": verification,
        "versions": describe_versions(),
        "hardware": describe_hardware(),
    }
    return manifest | read_lineage(run_folder)


def _shareable_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values, without the passwords that addresses of storages and servers may hold."""
    values = recipe.as_dict()
    for section, key in (("prune", "storage"), ("corpus", "server")):
        if values[section][key] is not None:
            values[section][key] = without_password(values[section][key])
    return values


def describe_code() -> dict[str, Any]:
    """Revision of the code and whether it has uncommitted changes, where the package lies in a git repository."""
    package = Path(__file__).resolve().parent.parent
    revision = _git(package, "rev-parse", "HEAD")
    if revision is None:
        return {}
    return {"revision": revision, "dirty": bool(_git(package, "status", "--porcelain", "--untracked-files=no", "."))}


def write_manifest(manifest: dict[str, Any], folder: Path) -> None:
    """Adds the hashes of all files in `folder`, seals the manifest and writes it there."""
    files = {
        name: {"sha256": sha256_of_file(folder / name), "bytes": (folder / name).stat().st_size}
        for name in list_files(folder)
        if name != MANIFEST_FILE
    }
    text = json.dumps({**manifest, "files": files, "manifest_sha256": _ZEROS}, indent=2, ensure_ascii=False) + "\n"
    write_text(folder / MANIFEST_FILE, text.replace(_ZEROS, hashlib.sha256(text.encode()).hexdigest()))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads and checks a manifest's form; hashes are checked by `check_files`."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise WorkbenchError(f"{folder} is no published drafter: it has no {MANIFEST_FILE}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise WorkbenchError(f"{path} lists no files: the folder was not published by this workbench")
    if manifest.get("schema_version") != SCHEMA_VERSION:
        found = manifest.get("schema_version")
        raise WorkbenchError(f"{path} has schema {found}, this workbench reads {SCHEMA_VERSION}: update one of them")
    return manifest


def check_files(folder: Path) -> dict[str, Any]:
    """Checks that a folder holds exactly the files that were published, byte by byte; returns its manifest."""
    manifest = read_manifest(folder)
    listed = manifest["files"]
    for name in listed:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or str(path) != name:
            raise WorkbenchError(f"{folder / MANIFEST_FILE} lists {name!r}, which is no plain name within the folder")
    content = (folder / MANIFEST_FILE).read_bytes()  # as text, a changed line ending would not be noticed
    seal = str(manifest.get("manifest_sha256"))
    unsealed = content.replace(seal.encode(), _ZEROS.encode())
    if len(seal) != len(_ZEROS) or hashlib.sha256(unsealed).hexdigest() != seal:
        raise WorkbenchError(
            f"{folder / MANIFEST_FILE} was changed after publishing: its own hash does not match; fetch or publish it "
            "again"
        )
    present = list_files(folder)
    missing = sorted(set(listed) - set(present))
    if missing:
        raise WorkbenchError(f"{folder} is incomplete: {', '.join(missing)} missing")
    unlisted = sorted(set(present) - set(listed) - {MANIFEST_FILE})
    if unlisted:
        raise WorkbenchError(f"{folder} holds files that were not published: {', '.join(unlisted)}")
    for name, entry in listed.items():
        if sha256_of_file(folder / name) != entry.get("sha256"):
            raise WorkbenchError(
                f"{folder / name} was changed after publishing: its hash does not match; fetch or publish it again"
            )
    return manifest


def list_files(folder: Path) -> list[str]:
    """Names of all files of a folder relative to it, sorted; refuses links, which could point outside."""
    names = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if relative.parts[0] in _HUB_FILES:
            continue
        if path.is_symlink():
            raise WorkbenchError(f"{path} is a link: a published folder holds plain files only")
        if path.is_file():
            names.append(relative.as_posix())
    return names


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
