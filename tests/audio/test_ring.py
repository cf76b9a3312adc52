"""The ring between a callback and its reader."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from audio.ring import Ring


def count(start: int, n: int) -> np.ndarray:
    return np.arange(start, start + n, dtype=np.float32)[:, None]


def test_what_is_written_is_read_in_order_across_the_wrap() -> None:
    ring, seen = Ring(10, 1000), []
    for start in range(0, 60, 6):
        ring.write(count(start, 6))
        seen.append(ring.read())
    assert np.array_equal(np.concatenate(seen), count(0, 60))
    assert ring.lost == 0 and ring.waiting == 0


def test_a_late_reader_loses_the_oldest_and_knows_how_many() -> None:
    ring = Ring(10, 1000)
    for start in range(0, 24, 6):
        ring.write(count(start, 6))
    assert np.array_equal(ring.read(), count(14, 10))
    assert ring.lost == 14
    ring.write(count(24, 3))
    assert np.array_equal(ring.read(), count(24, 3)) and ring.lost == 14


def test_a_limited_read_leaves_the_rest() -> None:
    ring = Ring(10, 1000)
    ring.write(count(0, 8))
    assert np.array_equal(ring.read(5), count(0, 5))
    assert ring.waiting == 3 and ring.room == 7
    assert np.array_equal(ring.read(5), count(5, 3))
    assert len(ring.read()) == 0


def test_skipping_forgets_what_waits() -> None:
    ring = Ring(10, 1000)
    ring.write(count(0, 7))
    ring.skip_to(5)
    assert ring.waiting == 2 and ring.taken == 5
    ring.skip_to(3)  # there is no way back
    ring.skip_to(99)  # nor past what is there
    ring.write(count(7, 2))
    assert np.array_equal(ring.read(), count(7, 2)) and ring.lost == 0


def test_every_sample_has_its_moment() -> None:
    ring = Ring(100, 1000)
    ring.write(count(0, 50), 7.0)
    ring.write(count(50, 50), 7.05)
    assert ring.time_of(0) == pytest.approx(7.0)
    assert ring.time_of(75) == pytest.approx(7.075)


def test_a_reader_on_another_thread_sees_each_sample_once() -> None:
    ring, total = Ring(4096, 1000), 400_000
    seen: list[np.ndarray] = []
    done = threading.Event()

    def write() -> None:
        for start in range(0, total, 800):
            while ring.room < 800 and not done.is_set():
                pass
            ring.write(count(start, 800))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while (sum(map(len, seen)) < total and writer.is_alive()) or ring.waiting:
            seen.append(ring.read())
    finally:
        done.set()
        writer.join()
    assert np.array_equal(np.concatenate(seen), count(0, total)) and ring.lost == 0


def test_an_overtaken_reader_never_sees_a_torn_sample() -> None:
    """The writer laps the reader at will: what is read is still without a gap inside."""
    ring, total = Ring(1000, 1000), 300_000
    torn: list[np.ndarray] = []

    def write() -> None:
        for start in range(0, total, 300):
            ring.write(count(start, 300))

    writer = threading.Thread(target=write)
    writer.start()
    read = 0
    while writer.is_alive() or ring.waiting:
        part = ring.read()
        read += len(part)
        if len(part) and not np.all(np.diff(part[:, 0]) == 1):
            torn.append(part)
    writer.join()
    assert not torn
    assert read + ring.lost == total


def test_frames_keep_their_channels() -> None:
    ring = Ring(10, 1000, channels=2)
    ring.write(np.hstack([count(0, 8), count(100, 8)]))
    ring.read(5)
    ring.write(np.hstack([count(8, 6), count(108, 6)]))
    assert np.array_equal(ring.read(), np.hstack([count(5, 9), count(105, 9)]))
