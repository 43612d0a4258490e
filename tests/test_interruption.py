"""Killed in the middle of any stage and started again, a run ends as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.files import content_fingerprint, read_json

TINY = {
    "corpus.num_responses": "96",
    "corpus.num_held_out": "48",
    "corpus.batch_size": "16",
    "distill.steps": "40",
    "distill.max_minutes": "null",
    "distill.validate_every": "10",
    "prune.drop_layers": "[1]",
    "prune.trials": "4",
    "prune.heal_steps": "10",
    "prune.decode_prompts": "8",
    "prune.max_minutes": "null",
    "validate.suites.0.num_prompts": "12",
    "validate.timed_prompts": "4",
    "validate.max_new_tokens": "48",
}


def start(folder: Path) -> subprocess.Popen:
    overrides = [word for key, value in TINY.items() for word in (f"--{key}", value)]
    places = ["--runs", str(folder / "runs"), "--publish.folder", str(folder / "published" / "drafter")]
    return subprocess.Popen(
        [sys.executable, "-m", "workbench", "run", "quickstart", *overrides, *places],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_when(process: subprocess.Popen, is_time: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 1800
    while not is_time():
        assert process.poll() is None, f"the run ended before it could be killed:\n{process.communicate()[0]}"
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def finish(process: subprocess.Popen) -> str:
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


def facts(folder: Path) -> dict:
    """What a run comes to, times aside."""
    run = folder / "runs" / "quickstart"
    search, validation = read_json(run / "search.json"), read_json(run / "validation.json")
    return {
        "corpus": read_json(run / "corpus" / "corpus.json")["fingerprint"],
        "curve": [
            {key: value for key, value in point.items() if key != "seconds"}
            for point in read_json(run / "distill" / "distill.json")["curve"]
        ],
        "unpruned": content_fingerprint(run / "prune" / "unpruned" / "model.safetensors"),
        "healed": [(entry["name"], entry["acceptance_length"]) for entry in search["healed"]],
        "lossless": validation["lossless"],
        "files": sorted(path.name for path in (folder / "published").rglob("*")),
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_killed_in_every_stage_ends_as_an_uninterrupted_one(tmp_path):
    finish(start(tmp_path / "whole"))
    killed = tmp_path / "killed"
    run = killed / "runs" / "quickstart"
    measurements = run / "validate" / "measurements.jsonl"
    moments = {
        "corpus": lambda: any((run / "corpus").glob("train-*.parquet")),
        "distill": lambda: (run / "distill" / "checkpoints" / "last.ckpt").is_file(),
        "prune": lambda: len(list((run / "prune" / "scores").glob("*.json"))) > 4,
        "validate": lambda: measurements.is_file() and len(measurements.read_bytes().splitlines()) > 5,
        "publish": lambda: any((killed / "published").glob("*")),
    }
    for stage, is_time in moments.items():
        kill_when(start(killed), is_time)
        assert not (run / stage / "stage.json").exists(), f"{stage} was over before the kill"
        assert not (killed / "published" / "drafter").exists()
    output = finish(start(killed))
    assert "corpus: finished, inputs unchanged" in output
    assert "publish: was interrupted, continues" in output
    assert facts(killed) == facts(tmp_path / "whole")
    assert "finished" in finish(start(killed))
