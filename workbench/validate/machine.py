"""The machine that was measured: hardware, versions, and how much of it others were using."""

import importlib.metadata
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench.host import memory_bytes

PACKAGES = ("torch", "transformers", "lightning", "optuna", "datasets", "numpy", "safetensors", "huggingface-hub")
"""Whose versions a report names."""

BUSY_CORES = 0.2
"""Cores that others may use on average before a report warns; an idle desktop uses a few hundredths."""


def describe_hardware() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, and GPUs."""
    return {
        "processor": _processor_name(),
        "architecture": platform.machine(),
        "cores": num_cores(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "operating_system": f"{platform.system()} {platform.release()}",
    }


def describe_versions() -> dict[str, str]:
    """Versions of Python, of this package and of the packages that decide speed or numbers."""
    versions = {"python": platform.python_version(), "workbench": _version("drafter-workbench")}
    versions.update({name: _version(name) for name in PACKAGES})
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return {name: version for name, version in versions.items() if version}


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class CpuTicks:
    """Counters of the kernel in clock ticks since boot; two of them give the load in between."""

    elapsed: int
    """Ticks of all cores, idle ones included."""
    busy: int
    """Ticks in which a core worked for anybody."""
    own: int
    """Ticks of this process and its descendants."""
    cores: int


def read_cpu_ticks() -> CpuTicks | None:
    """The present counters; None where there is no /proc (then a report says that load is unknown)."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal; guest time is already part of user time.
    fields = [int(field) for field in lines[0].split()[1:9]]
    cores = sum(1 for line in lines if re.match(r"cpu\d", line))
    idle = fields[3] + fields[4]
    return CpuTicks(sum(fields), sum(fields) - idle, _ticks_of_family(os.getpid()), cores)


def cores_used_by_others(before: CpuTicks, after: CpuTicks) -> float | None:
    """Cores that anybody but this process and its descendants kept busy on average; None for an empty interval."""
    elapsed = after.elapsed - before.elapsed
    if elapsed <= 0:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, others / elapsed * after.cores)


def _ticks_of_family(root: int) -> int:
    """Ticks of a process and all its living descendants, and of the children that they have waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                # The command name, in parentheses, may hold spaces: fields are counted from behind it.
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    return sum(count for process, count in ticks.items() if _is_descendant(process, root, parents))


def _is_descendant(process: int, root: int, parents: dict[int, int]) -> bool:
    while process in parents:
        if process == root:
            return True
        process = parents[process]
    return False


def _processor_name() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
