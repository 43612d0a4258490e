"""Guides: every command in README and docs is run as it is written, if it needs neither a training nor a GPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
QUICK = re.compile(
    r"make (help|list)\b|make plan RECIPE=qwen3\S* ARGS=\"--device h200|python -m workbench plan |cp recipes/"
)
"""Commands that end within seconds and need nothing that another command made."""


def fenced_commands(guide):
    blocks = re.findall(r"^```\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+#.*", "", line) for line in lines if line]


COMMANDS = sorted({command for guide in GUIDES for command in fenced_commands(guide)})


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A place like a fresh clone's, in which runs and recipes can be written."""
    for path in Path.cwd().iterdir():
        if path.name not in ("runs", "recipes", ".git"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "recipes").mkdir()
    for path in Path("recipes").iterdir():
        (tmp_path / "recipes" / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [command for command in COMMANDS if QUICK.match(command)])
def test_a_command_runs_as_written(command, checkout):
    command = re.sub(r"^python ", f"{sys.executable} ", command)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
