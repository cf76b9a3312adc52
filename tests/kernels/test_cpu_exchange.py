"""Tickets between real threads: every item once, no stage early, nobody waits for an absentee."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from numba import njit

from engine import mailbox as mb
from kernels.cpu_exchange import ITEM_BITS, complete, next_item
from kernels.stages import ATTENTION

STAGES, ITEMS = 300, 7


@njit(nogil=True)
def walk(words: np.ndarray, log: np.ndarray, first: int, last: int) -> None:
    """Stages first .. last - 1: log[stage, item] counts who did it; early ones count 1000."""
    for sequence in range(first, last):
        while True:
            item = next_item(words, sequence, ITEMS, ATTENTION, 3)
            if item < 0:
                break
            done_before = sequence == 1 or log[sequence - 1].sum() == ITEMS
            log[sequence, item] += 1 if done_before else 1000
            complete(words, sequence, ITEMS)


@pytest.fixture
def words() -> np.ndarray:
    box = mb.Mailbox(4)
    box.words[mb.CLOCK], box.words[mb.TIMEOUT_NS] = time.CLOCK_MONOTONIC, 20 * 10**9
    box.words[mb.STATE] = 1 << ITEM_BITS
    box.words[mb.TOKEN_FD] = -1
    return box.words


def run(words: np.ndarray, log: np.ndarray, threads: int) -> Iterator[threading.Thread]:
    for _ in range(threads):
        thread = threading.Thread(target=walk, args=(words, log, 1, STAGES + 1), daemon=True)
        thread.start()
        yield thread


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_once_and_no_stage_early(words: np.ndarray, threads: int) -> None:
    log = np.zeros((STAGES + 1, ITEMS), dtype=np.int64)
    for thread in list(run(words, log, threads)):
        thread.join(60)
        assert not thread.is_alive()
    assert (log[1:] == 1).all()
    assert words[mb.STATE] == (STAGES + 1) << ITEM_BITS


def test_a_late_thread_skips_what_went_by(words: np.ndarray) -> None:
    log = np.zeros((STAGES + 1, ITEMS), dtype=np.int64)
    walk(words, log, 1, STAGES)  # nobody waits for a second thread
    for thread in list(run(words, log, 2)):
        thread.join(60)
        assert not thread.is_alive()
    assert (log[1:] == 1).all()


def test_a_thread_that_never_hands_in_is_named(words: np.ndarray) -> None:
    words[mb.TIMEOUT_NS] = 10**6
    words[mb.PUBLISHED] = 5
    held = next_item(words, 1, 1, ATTENTION, 3)
    assert held == 0
    assert next_item(words, 1, 1, ATTENTION, 3) == -1, "waits in vain, then leaves"
    assert mb.unpack_fault(int(words[mb.FAULT])) == (ATTENTION, 3, 5)
    assert words[mb.FINISH] == mb.pack_finish(mb.FAULTED, 5)
    complete(words, 1, 1)  # the culprit wakes up: too late to open the next stage
    assert next_item(words, 2, 1, ATTENTION, 3) == -1


@pytest.mark.parametrize("place", [(0, 0, 0), (8, 31, 255), (3, 65_535, 131_072)])
def test_faults_fit_in_a_word(place: tuple[int, int, int]) -> None:
    assert mb.unpack_fault(mb.pack_fault(*place)) == place
