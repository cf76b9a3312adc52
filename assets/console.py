"""Download progress for a person at a terminal, and plain lines for a log."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_LINE_EVERY_PERCENT = 25


class ConsoleProgress:
    """A progress callback that draws bars on standard error, or lines where it is no terminal."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._is_terminal = sys.stderr.isatty()
        self._tasks: dict[str, TaskID] = {}
        self._printed_percent: dict[str, int] = {}

    def __enter__(self) -> ConsoleProgress:
        if self._is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:  # elsewhere stopping would print an empty line
            self._bars.stop()

    def __call__(self, name: str, done_bytes: int, total_bytes: int) -> None:
        if self._is_terminal:
            self._draw(name, done_bytes, total_bytes)
        elif total_bytes:
            self._print(name, done_bytes, total_bytes)

    def _draw(self, name: str, done_bytes: int, total_bytes: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=None)
        self._bars.update(self._tasks[name], completed=done_bytes, total=total_bytes or None)

    def _print(self, name: str, done_bytes: int, total_bytes: int) -> None:
        if 100 * done_bytes < total_bytes:  # not a percent yet: perhaps nothing will come
            return
        step = 100 * done_bytes // total_bytes // _LINE_EVERY_PERCENT * _LINE_EVERY_PERCENT
        if step != self._printed_percent.get(name):
            self._printed_percent[name] = step
            size = f"{done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB"
            print(f"{name}: {step}% ({size})", file=sys.stderr, flush=True)
