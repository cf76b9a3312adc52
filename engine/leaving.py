"""How a command ends: faults in one line, nothing lost, and at once.

With torch loaded the interpreter takes over half a second to take itself apart, and it cannot
unwind native threads that are in the middle of something. So a command runs what is registered to
run at the end, flushes its output and then leaves without the rest.
"""

from __future__ import annotations

import _thread
import argparse
import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from engine.errors import UnpausedError

FAULT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141  # the latter two as shells report such ends
_GRACE_S = 0.6  # for engines and servers to close; with what the system then takes under a second
_NO_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "out of memory", "can't start new thread",
    "failed to map segment",
)  # fmt: skip

_interrupted = False
_last_words: Callable[[], str] | None = None


class Parser(argparse.ArgumentParser):
    """A wrong command line is one line on standard error, and exit code 2."""

    def parse_known_args(self, *args: Any, **more: Any) -> Any:
        """As argparse's, but what nobody knows is a fault of the command that it was given to.

        A command would hand it on, and its parents would point to their own help.
        """
        options, unknown = super().parse_known_args(*args, **more)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"unpaused: {message} (see {self.prog} --help)\n")


def run(command: Callable[[], int]) -> int:
    """The exit code of `command`, with its output flushed and its faults said in one line."""
    try:
        code = command()
        sys.stdout.flush()  # here, where it is still told when there is no room for it
        return code
    except UnpausedError as error:
        return _fault(str(error))
    except KeyboardInterrupt:
        _say_last_words()  # said already, unless this is Python's own interrupt
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `| head`
        return BROKEN_PIPE
    except Exception as error:
        if _interrupted:  # it can surface as the failure of what it interrupted
            return INTERRUPTED
        line = _explain(error)
        if line is None:
            raise
        return _fault(line)
    finally:
        last_words(None)  # they were the command's


def leave(code: int) -> NoReturn:
    """End this process with `code`, a second from now at the latest."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    _leave_later(code)
    atexit._run_exitfuncs()  # engines close, temporary folders go
    os._exit(code)


def heed_interrupts() -> None:
    """Make Ctrl+C end this process within a second, also where the exception gets lost.

    Callbacks out of native code cannot pass `KeyboardInterrupt` on, and numba's start is full of
    them. A second Ctrl+C leaves at once. For the main thread of a command.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _unraisable


def last_words(words: Callable[[], str] | None) -> None:
    """From now on Ctrl+C says `words()`, a line, on standard error, wherever it lands; once.

    They are found in the main thread in the middle of anything, and so may save what there is.
    """
    global _last_words
    _last_words = words


def heed_lost_interrupt() -> None:
    """Interrupt again, where what an interrupt hit took it for a failure of its own."""
    if _interrupted:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    if _interrupted:
        os._exit(INTERRUPTED)
    _interrupted = True
    _leave_later(INTERRUPTED)
    _say_last_words()
    raise KeyboardInterrupt


def _say_last_words() -> None:
    global _last_words
    words, _last_words = _last_words, None
    if words is None:
        return
    try:
        line = words()
    except Exception as error:  # nobody could do anything about it any more
        line = f"interrupted: {error}"
    with suppress(OSError):  # past `sys.stderr`, which may be in the middle of a line itself
        os.write(2, f"{line}\n".encode(errors="replace"))


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    if issubclass(lost.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    if not _interrupted:  # destructors complain about what an interrupt left half-made
        sys.__unraisablehook__(lost)


def _leave_later(code: int) -> None:
    """Leave in `_GRACE_S`, whatever the other threads do by then."""

    def wait_and_leave() -> None:
        time.sleep(_GRACE_S)
        os._exit(code)

    # Not `threading`: its locks may be held by whatever a signal has interrupted.
    with suppress(RuntimeError):  # no memory for a thread
        _thread.start_new_thread(wait_and_leave, ())


def _fault(line: str) -> int:
    with suppress(OSError):
        print(f"unpaused: {line}", file=sys.stderr)
    return FAULT


def _explain(error: Exception) -> str | None:
    """A fault of the machine in one line; None for one of the program."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(phrase in text for phrase in _NO_MEMORY):
        return (
            "there is not enough memory: close other programs, raise the limit (ulimit -v), "
            "or choose a smaller model or context"
        )
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else "reading or writing failed: "
        return f"{place}{error.strerror or error}; see to that and run the command again"
    return None
