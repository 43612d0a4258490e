"""Trainings of a tiny drafter, run by every process that torchrun starts; the first process writes the results."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import DTensor

from tests.conftest import make_model, make_spec, make_target
from tests.distill.conftest import make_samples
from workbench.corpus.responses import Corpus
from workbench.distill import fit
from workbench.distill.data import DistillationData
from workbench.drafter.model import Drafter
from workbench.recipe import DistillOptions

CORPUS = Corpus(train=make_samples(96, 0), held_out=make_samples(24, 1), facts={"fingerprint": "0123"})
OPTIONS = {"steps": 6, "blocks_per_sequence": 4, "validate_every": 3, "learning_rate": 3e-3, "precision": "32-true"}
TRAININGS: dict[str, dict[str, Any]] = {
    "copies, interrupted": {"strategy": "ddp", "ema_decay": 0.9},
    "copies": {"strategy": "ddp", "accumulate": 2, "position_weights": "survival"},
    "copies from a cache": {"strategy": "ddp", "teacher": "cache", "teacher_top_k": 40},
    "shards": {"strategy": "fsdp2", "ema_decay": 0.9, "freeze_embeddings": True},
    "shards, interrupted": {"strategy": "fsdp2", "ema_decay": 0.9, "freeze_embeddings": True},
    "shards in bfloat16": {"strategy": "fsdp2", "precision": "bf16-true"},
}
"""Options beside those above, by name."""


def train(name: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """One training, from the last checkpoint in the folder."""
    target = make_target()
    drafter = Drafter(make_model(vocab_rows=40, seed=5), make_spec(target, block_size=5))
    options = DistillOptions(**{**OPTIONS, **TRAININGS[name], **changes})
    report = fit.fit_drafter(drafter, target, CORPUS, options, folder / name / "distill", seed=0)
    held = [
        (parameter.to_local() if isinstance(parameter, DTensor) else parameter)
        for parameter in target.model.parameters()
    ]
    return {
        "weights": drafter.model.state_dict(),
        "report": report,
        "held_target_fraction": sum(map(torch.numel, held)) / sum(map(torch.numel, target.model.parameters())),
    }


class Killed(Exception):
    pass


def train_killed(name: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """The same, but the first attempt breaks off after its checkpoint, as if the processes had been killed."""
    batch = DistillationData.batch

    def draw(self, number):
        if number == 4:
            raise Killed
        return batch(self, number)

    with mock.patch.object(DistillationData, "batch", draw), contextlib.suppress(Killed):
        train(name, folder, **changes)
    return train(name, folder, **changes)


if __name__ == "__main__":
    root, names = Path(sys.argv[1]), sys.argv[2:]
    fit.leave_processes = lambda: None  # several trainings share one start of the processes
    for training in names:
        attempt = train_killed if "interrupted" in training else train
        result = attempt(training, root, batch_size=4, devices=2)
        if os.environ["RANK"] == "0":
            torch.save(result, root / training / "result.pt")
