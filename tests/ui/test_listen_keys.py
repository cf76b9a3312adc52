"""Keys of a terminal, read from a pseudo-terminal."""

from __future__ import annotations

import os
import queue
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from ui.listen_keys import Keys, PushToTalk

REPEAT_S = 0.033


def held(talk: PushToTalk, start: float, delay_s: float, until: float) -> list[tuple[float, bool]]:
    """What a key held from `start` to `until` does, looked at every 10 ms."""
    presses = [start]
    while presses[-1] + (REPEAT_S if len(presses) > 1 else delay_s) < until:
        presses.append(presses[-1] + (REPEAT_S if len(presses) > 1 else delay_s))
    return run(talk, presses, until + 1)


def run(talk: PushToTalk, presses: list[float], until: float) -> list[tuple[float, bool]]:
    changes, now = [], presses[0]
    presses = list(presses)
    while now < until:
        while presses and presses[0] <= now:
            changes.append((now, talk.press(presses.pop(0))))
        changes.append((now, talk.tick(now)))
        now += 0.01
    return [(when, what) for when, what in changes if what is not None]


@pytest.mark.parametrize("delay_s", [0.2, 0.4, 0.66])
def test_a_held_key_talks_until_it_is_let_go(delay_s: float) -> None:
    (begun, on), (ended, off) = held(PushToTalk(), 1.0, delay_s, 4.0)
    assert on and not off
    assert begun == pytest.approx(1.0, abs=0.02)
    assert 4.0 - REPEAT_S <= ended <= 4.3


def test_two_taps_begin_and_end() -> None:
    (begun, on), (ended, off) = run(PushToTalk(), [1.0, 3.0], 6.0)
    assert on and not off
    assert begun == pytest.approx(1.0, abs=0.02) and 3.0 < ended < 3.15


def test_a_single_tap_keeps_talking() -> None:
    talk = PushToTalk()
    assert run(talk, [1.0], 60.0) == [(1.0, True)]
    assert talk.talking
    talk.cancel()
    assert talk.press(61.0) is True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The far end of a pseudo-terminal that is standard input."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


def test_keys_arrive_one_by_one_and_the_terminal_is_put_back(terminal: int) -> None:
    pressed: queue.Queue[str] = queue.Queue()
    before = termios.tcgetattr(sys.stdin.fileno())
    with Keys(pressed.put) as keys:
        assert keys.available
        os.write(terminal, b"\x1b[Ae ")
        os.write(terminal, "é".encode())
        assert before != termios.tcgetattr(sys.stdin.fileno())
        os.write(terminal, b"q")
        assert [pressed.get(timeout=60) for _ in range(4)] == ["e", " ", "é", "q"]
    assert termios.tcgetattr(sys.stdin.fileno()) == before


@pytest.mark.parametrize("stdin", [None, "closed", "pipe"])
def test_without_a_terminal_there_are_no_keys_and_no_fault(
    stdin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe:
        if stdin == "closed":
            pipe.close()
        monkeypatch.setattr(sys, "stdin", None if stdin is None else pipe)
        with Keys(lambda _: None) as keys:
            assert not keys.available
    os.close(writing)


def test_a_terminal_that_goes_away_ends_the_keys(terminal: int) -> None:
    with Keys(lambda _: None) as keys:
        assert keys.available
        os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
