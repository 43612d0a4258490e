"""What a user sees while a command works: lines, tables and progress with the time left."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console(highlight=False, soft_wrap=True)
_WORTH_SAYING_S = 5.0
"""Less time left is not mentioned."""


def render_duration(seconds: float) -> str:
    """`47 s` or `3.2 min`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Shows a bar with the time left; yields `advance(count, note)`.

    On anything but a terminal a bar would flood the log, so a line is printed every tenth of the way instead.
    """
    if not console.is_terminal:
        yield _line_reporter(description, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(count: int, note: str = "") -> None:
            bar.advance(task, count)
            if note:
                bar.update(task, note=note)

        yield advance


def _line_reporter(description: str, total: int) -> Callable[[int, str], None]:
    done, next_report, first, started_s = 0, 0.0, 0, 0.0

    def advance(count: int, note: str = "") -> None:
        nonlocal done, next_report, first, started_s
        if not done:  # something that was interrupted begins with what was done before
            first, started_s = count, time.monotonic()
        done += count
        if done >= next_report or done >= total:
            left_s = (time.monotonic() - started_s) * (total - done) / max(1, done - first)
            left = f", {render_duration(left_s)} left" if left_s > _WORTH_SAYING_S else ""
            console.print(f"{description}: {done}/{total}{left} {note}".rstrip())
            next_report = done + total / 10

    return advance
