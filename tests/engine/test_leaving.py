"""How a command ends, each in a process of its own: codes, output, and Ctrl+C wherever it lands."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60
_FRAME = """
import atexit, os, sys, tempfile, threading, time
from engine import leaving
from engine.errors import UnpausedError

def command():
{body}

leaving.heed_interrupts()
leaving.leave(leaving.run(command))
"""


def start(body: str, **options: Any) -> subprocess.Popen[str]:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return subprocess.Popen(
        [sys.executable, "-c", _FRAME.format(body=lines)],
        cwd=ROOT, text=True, stderr=subprocess.PIPE, **{"stdout": subprocess.PIPE, **options},
    )  # fmt: skip


def outcome(body: str, **options: Any) -> tuple[int, str, str]:
    process = start(body, **options)
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out or "", err


def interrupted(body: str) -> tuple[int, str, str]:
    """Ctrl+C once the body has said "ready"."""
    process = start(body)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def test_output_is_flushed_and_what_is_registered_runs() -> None:
    code, out, err = outcome(
        """
atexit.register(lambda: print("registered", file=sys.stderr))
folder = tempfile.TemporaryDirectory()
globals()["kept"] = folder
print(folder.name, "x" * 100_000)
return 7
"""
    )
    name, _, rest = out.partition(" ")
    assert code == 7 and rest == "x" * 100_000 + "\n" and err == "registered\n"
    assert not Path(name).exists()


def test_threads_that_do_not_end_keep_nobody() -> None:
    code, out, err = outcome(
        """
threading.Thread(target=threading.Event().wait).start()
atexit.register(threading.Event().wait)
print("done")
return 0
"""
    )
    assert (code, out, err) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("UnpausedError('the cause: the remedy')", "the cause: the remedy"),
        ("OSError(28, 'No space left on device')", "No space left on device"),
        ("PermissionError(13, 'Permission denied', '/a/file')", "/a/file: Permission denied"),
        ("MemoryError()", "not enough memory"),
        ('RuntimeError("DefaultCPUAllocator: can\'t allocate memory")', "not enough memory"),
        ("ImportError('lib.so: failed to map segment from shared object')", "not enough memory"),
    ],
)
def test_faults_of_the_machine_are_one_line(raised: str, words: str) -> None:
    code, out, err = outcome(f"raise {raised}")
    assert code == 2 and out == ""
    assert len(err.splitlines()) == 1 and err.startswith("unpaused: ") and words in err


def test_faults_of_the_program_are_not_hidden() -> None:
    code, _, err = outcome("raise RuntimeError('a bug')")
    assert code == 1 and "Traceback" in err and "a bug" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("flush", [True, False])
def test_no_room_for_the_output_is_said(flush: bool) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        code, _, err = outcome(f"print('reply', flush={flush})\nreturn 0", stdout=full)
    assert code == 2
    assert len(err.splitlines()) == 1 and "No space left on device" in err


def test_a_reader_that_has_gone_is_no_fault() -> None:
    process = start("sys.stdin.readline()\nprint('late')\nreturn 0", stdin=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None and process.stderr is not None
    process.stdout.close()
    process.stdin.write("go\n")
    process.stdin.close()
    assert process.wait(LIMIT_S) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


WHERE_IT_LANDS = [
    "print('ready', flush=True)\ntime.sleep(50)",
    # Swallowed where Python cannot raise it: out of a destructor.
    """
class Slow:
    def __del__(self):
        print("ready", flush=True)
        time.sleep(50)
slow = Slow()
del slow
time.sleep(50)
""",
    # Swallowed by a library.
    """
print("ready", flush=True)
try:
    time.sleep(50)
except BaseException:
    pass
time.sleep(50)
""",
    # Turned into something else by a library.
    """
print("ready", flush=True)
try:
    time.sleep(50)
except BaseException as error:
    raise ValueError("numba could not start") from error
""",
    # What it interrupts has a destructor that does not cope.
    """
class Half:
    def __init__(self):
        print("ready", flush=True)
        time.sleep(50)
        self.pointer = 1
    def __del__(self):
        self.pointer
Half()
""",
    # Something else holds the end up.
    """
atexit.register(threading.Event().wait)
print("ready", flush=True)
time.sleep(50)
""",
]


@pytest.mark.parametrize("body", WHERE_IT_LANDS)
def test_an_interrupt_ends_it_wherever_it_lands(body: str) -> None:
    assert interrupted(body) == (130, "", "")


@pytest.mark.parametrize("body", WHERE_IT_LANDS)
def test_the_last_words_are_said_wherever_it_lands(body: str) -> None:
    words = "leaving.last_words(lambda: 'early')\nleaving.last_words(lambda: 'kept, as a whole')\n"
    assert interrupted(words + body.strip()) == (130, "", "kept, as a whole\n")


def test_last_words_that_fail_say_why() -> None:
    words = "leaving.last_words(lambda: open('/no/such/file').name)\n"
    code, out, err = interrupted(words + WHERE_IT_LANDS[0])
    assert (code, out) == (130, "") and len(err.splitlines()) == 1
    assert err.startswith("interrupted: ") and "/no/such/file" in err


def test_last_words_are_said_of_python_s_own_interrupt_too() -> None:
    words = "leaving.last_words(lambda: 'kept')\nsignal.signal(2, signal.default_int_handler)\n"
    assert interrupted("import signal\n" + words + WHERE_IT_LANDS[0]) == (130, "", "kept\n")


def test_an_interrupt_that_was_lost_can_be_asked_for() -> None:
    body = """
print("ready", flush=True)
try:
    time.sleep(50)
except BaseException:
    pass
leaving.heed_lost_interrupt()
print("not heeded")
"""
    assert interrupted(body) == (130, "", "")


def test_where_interrupts_are_ignored_they_stay_ignored() -> None:
    process = start("print('ready', flush=True)\nsys.stdin.readline()\nreturn 0",
                    stdin=subprocess.PIPE,
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate("go\n", timeout=LIMIT_S)
    assert process.returncode == 0
