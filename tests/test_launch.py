import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbench import launch
from workbench.drafter.model import load_drafter
from workbench.errors import WorkbenchError
from workbench.files import read_json

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TINY = {
    "corpus.num_responses": "12",
    "corpus.num_held_out": "6",
    "corpus.max_new_tokens": "24",
    "corpus.batch_size": "6",
    "validate.suites.0.num_prompts": "2",
    "distill.steps": "4",
    "distill.max_minutes": "null",
    "distill.batch_size": "2",
    "distill.blocks_per_sequence": "2",
    "distill.validate_every": "2",
    "distill.precision": "32-true",
}


def start(folder: Path, command: str, *before: str, **options: str) -> str:
    changes = {**TINY, **{f"distill.{name}": value for name, value in options.items()}, "runs": str(folder)}
    overrides = [word for key, value in changes.items() for word in (f"--{key}", value)]
    process = subprocess.run(
        [sys.executable, *before, "-m", "workbench", command, "quickstart", *overrides],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("before", "strategy"), [(TORCHRUN, "fsdp2"), ([], "ddp")], ids=["by torchrun", "by itself"])
def test_two_processes_train_one_drafter(tmp_path, before, strategy):
    """The first process says what happens, once, and writes a whole drafter; one process trains the same."""
    start(tmp_path, "corpus")
    shutil.copytree(tmp_path, tmp_path / "alone", ignore=shutil.ignore_patterns("alone"))
    output = start(tmp_path, "distill", *before, devices="2", strategy=strategy)
    assert output.count("distilled in") == 1
    shared = tmp_path / "quickstart" / "distill"
    start(tmp_path / "alone", "distill", batch_size="4")
    alone = tmp_path / "alone" / "quickstart" / "distill"
    final, expected = (read_json(folder / "distill.json")["final"] for folder in (shared, alone))
    assert final["denoising"] == pytest.approx(expected["denoising"], rel=1e-3)
    assert load_drafter(shared / "drafter").spec == load_drafter(alone / "drafter").spec
    again = start(tmp_path, "distill", *before, devices="2", strategy=strategy)
    assert "distill: finished, inputs unchanged" in again


def test_the_number_of_a_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert launch.rank() == 0
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert launch.rank() == 1
    monkeypatch.setenv("RANK", "5")
    assert launch.rank() == 5


def test_a_launch_of_another_size_is_refused(monkeypatch):
    launch.check_size(4, 1)
    with pytest.raises(WorkbenchError, match=r"distill\.nodes is 2: start the command with torchrun"):
        launch.check_size(4, 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "4")
    launch.check_size(4, 2)
    with pytest.raises(WorkbenchError, match=r"torchrun started 4 processes, but .* is 2"):
        launch.check_size(2, 1)
