"""What the program holds of the C library's heaps, which tells a leak from what is kept free."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ui.memory import heap_in_use, tidy
from ui.visitors import Visitors

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(heap_in_use() is None, reason="this C library does not tell what is in use")
@pytest.mark.parametrize("size", [100_000, 50_000_000], ids=["of a heap", "mapped"])
def test_what_is_held_counts_and_what_is_given_back_does_not(size: int) -> None:
    tidy()
    before = heap_in_use() or 0
    held = [bytearray(size) for _ in range(4)]
    during = heap_in_use() or 0
    assert during - before > 3.9 * size
    held.clear()
    tidy()
    assert (heap_in_use() or 0) < during - 3.5 * size


_THREADS = """
import ctypes, re, threading
from ui.memory import keep_few_heaps

assert keep_few_heaps()
gate = threading.Barrier(8)

def work():
    gate.wait(30)
    held.append(ctypes.CDLL(None).malloc(100))
    gate.wait(30)

held, threads = [], [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join(30) for thread in threads]
assert len(held) == 8
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(heap_in_use() is None, reason="this C library does not tell what is in use")
def test_threads_share_two_heaps() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _THREADS], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert 1 <= done.stdout.count("<heap nr=") <= 2


@pytest.mark.skipif(heap_in_use() is None, reason="this C library does not tell what is in use")
def test_the_server_tells_it(visitors: Visitors) -> None:
    told = visitors.runtime.telemetry.registry.get_sample_value("unpaused_heap_bytes")
    assert told is not None and told > 1e6
