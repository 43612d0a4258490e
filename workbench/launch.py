"""Which process of a launch this is, and how the other ones learn what the first one does.

To train on several devices the same command runs in several processes: the first one does everything, the others only
train. On one machine the first process starts the others itself when the training begins. On several machines
`torchrun` starts all of them at once; then the others wait for the first one's word before they train.
"""

import datetime
import os
from typing import Any

from workbench.errors import WorkbenchError

_LONGEST_WAIT = datetime.timedelta(days=60)  # the first process may write a corpus before
_WORKS, _IS_FINISHED = "works", "is finished"


def rank() -> int:
    """Number of this process in its launch; 0 is the first one."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def is_by_torchrun() -> bool:
    """All processes were started at once, and from outside."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def announce(stage: str, works: bool) -> None:
    """The first process says whether a stage works now or has nothing to do."""
    if is_by_torchrun():
        _store().set(stage, _WORKS if works else _IS_FINISHED)


def joins(stage: str) -> bool:
    """Whether another process has to take part in a stage; waits until that is known."""
    if not is_by_torchrun():
        return True
    store = _store()
    store.wait([stage], _LONGEST_WAIT)
    return store.get(stage).decode() == _WORKS


def check_size(num_processes: int, num_nodes: int) -> None:
    """Refuses a launch of another size than the recipe's."""
    if is_by_torchrun():
        started = int(os.environ["WORLD_SIZE"])
        if started != num_processes:
            raise WorkbenchError(
                f"torchrun started {started} processes, but distill.devices times distill.nodes is {num_processes}: "
                "make them equal"
            )
    elif num_nodes > 1:
        raise WorkbenchError(
            f"distill.nodes is {num_nodes}: start the command with torchrun on every node, see docs/several-devices.md"
        )


def _store() -> Any:
    import torch.distributed  # help and mistakes in a recipe must not wait for it

    # That of torchrun itself, which lives as long as the launch.
    store, _, _ = next(torch.distributed.rendezvous("env://"))
    return torch.distributed.PrefixStore("workbench", store)
