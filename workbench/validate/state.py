"""Measurements on disk, one JSON line each, so that a validation that was killed continues where it was."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from workbench.validate.timing import Job, Measurement

STATE_FILE = "measurements.jsonl"


class MeasurementLog:
    """Appends measurements to a file and knows those that are there.

    The first line says what was measured; a file that says something else is started anew. A line that a kill left
    unfinished is cut off.

    Args:
        folder: Where the file lies.
        subject: Everything that decides what a measurement means, as a JSON-serialisable value.
    """

    def __init__(self, folder: Path, subject: dict[str, Any]) -> None:
        self.path = folder / STATE_FILE
        self.measurements: dict[Job, Measurement] = {}
        self.num_resumed = 0
        self._subject = subject
        self._handle: TextIO | None = None

    def __enter__(self) -> "MeasurementLog":
        lines = _whole_lines(self.path)
        if lines and json.loads(lines[0]) == {"subject": self._subject}:
            for line in lines[1:]:
                measurement = Measurement.from_dict(json.loads(line))
                self.measurements[measurement.job] = measurement
        else:
            lines = [json.dumps({"subject": self._subject})]
        self.num_resumed = len(self.measurements)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Rewritten rather than truncated: a kill at this point leaves a shorter file of whole lines or the old one.
        temporary = self.path.with_suffix(".part")
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        temporary.replace(self.path)
        self._handle = self.path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.close()

    def append(self, measurement: Measurement) -> None:
        """Records one measurement."""
        assert self._handle is not None
        self._handle.write(json.dumps(measurement.as_dict()) + "\n")
        self._handle.flush()
        self.measurements[measurement.job] = measurement

    def set_aside(self) -> Path:
        """Renames the file, so that the next validation measures anew and the evidence stays."""
        retired = self.path.with_name("measurements-rejected.jsonl")
        self.path.replace(retired)
        return retired


def _whole_lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    text = path.read_bytes().decode("utf-8", errors="ignore")
    return text[: text.rfind("\n") + 1].splitlines()
