"""Two processes with half a batch each train what one process trains with the whole of it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distill.two_processes import TRAININGS, train

ROOT = Path(__file__).parents[2]
SLOW = [name for name in TRAININGS if name != "copies"]


def train_in_two_processes(folder: Path, *names: str) -> None:
    """Trainings that share the start of the processes."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    arguments = ["tests.distill.two_processes", str(folder), *names]
    subprocess.run([sys.executable, *command, *arguments], cwd=ROOT, check=True, timeout=240)


@pytest.fixture(scope="module")
def slow_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two processes")
    train_in_two_processes(folder, *SLOW)
    return folder


def test_two_processes_equal_one(tmp_path):
    train_in_two_processes(tmp_path, "copies")
    check_equality(tmp_path, tmp_path / "whole", "copies")


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_two_processes_equal_one_however_they_share(slow_folder, tmp_path, name):
    check_equality(slow_folder, tmp_path, name)


def check_equality(folder: Path, tmp_path: Path, name: str) -> None:
    whole = train(name, tmp_path, batch_size=8, devices=1, strategy="auto")
    shared = torch.load(folder / name / "result.pt", weights_only=False)
    tolerance: dict[str, Any] = {"atol": 3e-2, "rtol": 3e-2} if "bfloat16" in name else {"atol": 2e-5, "rtol": 1e-3}
    assert shared["weights"].keys() == whole["weights"].keys()
    for key, weight in whole["weights"].items():
        torch.testing.assert_close(shared["weights"][key], weight, **tolerance)
    if name.startswith("shards"):
        assert shared["held_target_fraction"] < 0.6
    one, two = whole["report"], shared["report"]
    assert (two.steps, two.clean_tokens, two.block_rows) == (one.steps, one.clean_tokens, one.block_rows)
    assert two.final["denoising"] == pytest.approx(one.final["denoising"], rel=2e-2 if "bfloat16" in name else 1e-4)
