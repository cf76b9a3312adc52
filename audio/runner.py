"""Where a dialogue's slow work happens: transcribing, judging, replying."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Runner(Protocol):
    """Runs work beside the dialogue. `work` never raises; each of its results is delivered."""

    def run(self, work: Callable[[], Iterable[T]], deliver: Callable[[T], None]) -> None:
        """Begin `work`; `deliver` gets its results in order, as they come."""
        ...


class ThreadRunner:
    """A thread for each piece of work; there are never more than a few at once."""

    def run(self, work: Callable[[], Iterable[T]], deliver: Callable[[T], None]) -> None:
        def follow() -> None:
            for result in work():
                deliver(result)

        threading.Thread(target=follow, name="turn-work", daemon=True).start()
