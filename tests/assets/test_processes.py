"""What other processes and sudden death can do to the cache."""

from __future__ import annotations

import signal

import pytest

from tests.assets.fakes import FakeWorld, file_table

FIRST, SECOND = b"first" * 999, b"second" * 999

KILL_AFTER_DOWNLOAD = """
import os, signal
hook = lambda name, done, total: done == total and os.kill(os.getpid(), signal.SIGKILL)
"""
KILL_AFTER_FIRST_FILE = """
import os, signal
hook = lambda *call: None
def adopt(*arguments, real=Cache.adopt):
    real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
Cache.adopt = adopt
"""


@pytest.fixture
def pair(world: FakeWorld) -> FakeWorld:
    """A world with one asset, `pair`, of two files in one wheel."""
    wheel = world.add_wheel("pair-weights", {"a.bin": FIRST, "b.bin": SECOND})
    tables = (
        file_table("a.bin", FIRST, "pair_weights/a.bin"),
        file_table("b.bin", SECOND, "pair_weights/b.bin"),
    )
    world.add_asset("pair", wheel, *tables)
    return world


def assert_whole(world: FakeWorld) -> None:
    assert (world.cache / "pair" / "a.bin").read_bytes() == FIRST
    assert (world.cache / "pair" / "b.bin").read_bytes() == SECOND
    assert not list(world.cache.glob(".fetching-*"))


@pytest.mark.parametrize(
    ("hook", "files_left"), [(KILL_AFTER_DOWNLOAD, 0), (KILL_AFTER_FIRST_FILE, 1)]
)
def test_a_killed_fetch_leaves_no_half_file(pair: FakeWorld, hook: str, files_left: int) -> None:
    killed = pair.fetch_in_process("pair", hook)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    left = list((pair.cache / "pair").glob("*.bin"))
    assert len(left) == files_left
    assert all(path.read_bytes() in (FIRST, SECOND) for path in left)
    again = pair.fetch_in_process("pair")
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert "fetched" in out
    assert_whole(pair)


def test_processes_that_fetch_at_once_fetch_once(pair: FakeWorld) -> None:
    running = [pair.fetch_in_process("pair") for _ in range(3)]
    results = [process.communicate(timeout=60) for process in running]
    assert all(process.returncode == 0 for process in running), results
    assert sum("fetched" in out for out, _ in results) == 1
    assert_whole(pair)
