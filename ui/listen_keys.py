"""Keys of a terminal, one by one, and what a space bar means that cannot be seen going up."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

try:
    import termios
    import tty
except ImportError:  # Windows: no keys, everything else works
    termios = tty = None  # type: ignore[assignment]

# A held key repeats 20 to 50 times a second after 0.2 to 0.7 s; nobody taps that fast.
_REPEAT_S = 0.09
_RELEASE_S = 0.16
# What an arrow or function key sends (ECMA-48, 5.4): it holds letters, but none was typed.
_ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.)?")


class PushToTalk:
    """Press to talk, from key presses alone: a tap switches, a held key talks until let go.

    Pure; times are seconds on any clock. `press` and `tick` return True when talking begins,
    False when it ends, None when nothing changes.
    """

    def __init__(self) -> None:
        self.talking = False
        self._held = False  # repeats were seen
        self._last = 0.0
        self._undecided = False  # the latest press is a second tap or the first repeat

    def press(self, now: float) -> bool | None:
        since, self._last = now - self._last, now
        if not self.talking:
            self.talking, self._held, self._undecided = True, False, False
            return True
        if since <= _REPEAT_S:
            self._held = True
        self._undecided = not self._held
        return None

    def tick(self, now: float) -> bool | None:
        """To be called often: what the time that passed without a press decides."""
        limit = _RELEASE_S if self._held else _REPEAT_S
        if not self.talking or not (self._held or self._undecided) or now - self._last <= limit:
            return None
        self.talking = False
        return False

    def cancel(self) -> None:
        """No longer talking, whatever the key does."""
        self.talking = False


class Keys:
    """Calls `press` with each character typed, from a thread, while entered.

    `available` is False without a terminal to read from (a pipe, a closed standard input): then
    nothing is read and nothing changed. The terminal is put back as it was on the way out.
    """

    def __init__(self, press: Callable[[str], None]) -> None:
        self._press = press
        self._fd = _terminal()
        self.available = self._fd is not None
        self._saved: Any = None
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Keys:
        if self._fd is not None:
            self._saved = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
            self._pipe = os.pipe()
            self._thread = threading.Thread(target=self._run, name="keys", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe is None or self._fd is None or self._thread is None:
            return
        os.close(self._pipe[1])  # wakes the thread
        self._thread.join(1.0)
        os.close(self._pipe[0])
        with contextlib.suppress(termios.error):  # the terminal has gone, with its window or line
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def _run(self) -> None:
        for character in self._characters():
            self._press(character)

    def _characters(self) -> Iterator[str]:
        assert self._fd is not None and self._pipe is not None
        while True:
            ready, _, _ = select.select([self._fd, self._pipe[0]], [], [])
            if self._pipe[0] in ready:
                return
            try:
                typed = os.read(self._fd, 64)
            except OSError:
                return
            if not typed:
                return
            yield from _ESCAPES.sub(b"", typed).decode(errors="ignore")


def _terminal() -> int | None:
    try:
        fd = sys.stdin.fileno()
        return fd if termios is not None and os.isatty(fd) else None
    except (AttributeError, OSError, ValueError):  # closed before we began, or replaced
        return None
