"""How long a search may take, counted over its interruptions."""

import time
from pathlib import Path

from workbench.files import read_json, write_json


class Budget:
    """Minutes of a search, kept in a file.

    Args:
        path: Of the file; time that an interrupted search spent is in it.
        max_minutes: None: as long as it takes.
    """

    def __init__(self, path: Path, max_minutes: float | None) -> None:
        self.path = path
        self.max_s = None if max_minutes is None else 60 * max_minutes
        self._before_s = float(read_json(path)["spent_s"]) if path.is_file() else 0.0
        self._started_s = self._phase_started_s = time.time()
        self._phases: dict[str, float] = {}

    @property
    def spent_s(self) -> float:
        """Seconds so far."""
        return self._before_s + time.time() - self._started_s

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the phases that ended in this process, and all seconds so far."""
        return {**self._phases, "total": self.spent_s}

    def save(self) -> None:
        """Notes the time spent, so that a kill loses none of it."""
        write_json(self.path, {"spent_s": self.spent_s})

    def end_phase(self, name: str) -> None:
        """Notes how long a phase took, since the last one ended."""
        now_s = time.time()
        self._phases[name] = now_s - self._phase_started_s
        self._phase_started_s = now_s
        self.save()

    def deadline_s(self, share: float) -> float | None:
        """When (`time.time`) this share of the budget is spent; None without a cap."""
        return None if self.max_s is None else self._started_s + share * self.max_s - self._before_s

    def allows(self, further_s: float, share: float) -> bool:
        """Whether something that takes so long would end within this share of the budget."""
        return self.max_s is None or self.spent_s + further_s <= share * self.max_s
