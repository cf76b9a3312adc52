import numpy as np
import pytest

from ui.playout import LEAD_MS, Playout

RATE = 22050
FRAME = RATE // 50


def seconds(count: float) -> np.ndarray:
    return np.arange(int(count * RATE)).astype(np.int16)


def test_no_more_is_sent_than_the_lead_until_something_was_played() -> None:
    playout = Playout(1)
    playout.add(seconds(5), RATE)
    sent = sum(len(frame) // 2 for frame in playout.take())
    assert LEAD_MS * RATE // 1000 <= sent < LEAD_MS * RATE // 1000 + FRAME
    assert playout.take() == []
    playout.report(FRAME)
    assert len(playout.take()) == 1


def test_everything_arrives_in_order_whatever_the_pace() -> None:
    playout = Playout(1)
    received = b""
    for _ in range(3):
        playout.add(seconds(0.7), RATE)
        while frames := playout.take():
            received += b"".join(frames)
            playout.report(playout.sent)
    playout.ended = True
    assert received == np.concatenate([seconds(0.7)] * 3).astype("<i2").tobytes()
    assert playout.all_sent


def test_reports_can_neither_go_back_nor_ahead() -> None:
    playout = Playout(1)
    playout.add(seconds(1), RATE)
    playout.take()
    playout.report(900)
    playout.report(100)
    assert playout.played == 900
    playout.report(2**31 - 1)
    assert playout.played == playout.sent


def test_a_pause_sends_nothing_and_a_stall_ends_it() -> None:
    playout = Playout(1)
    playout.add(seconds(3), RATE)
    playout.paused = True
    assert playout.take() == [] and playout.playing
    playout.paused = False
    assert playout.take()
    playout.stall()
    assert playout.stalled and not playout.playing


def test_what_was_dropped_is_not_sent() -> None:
    playout = Playout(1)
    playout.add(seconds(3), RATE)
    playout.take()
    assert playout.playing
    playout.drop()
    assert playout.take() == []
    assert playout.all_sent and not playout.playing


def test_an_empty_clause_and_a_changed_rate() -> None:
    playout = Playout(1)
    playout.add(np.zeros(0, np.int16), RATE)
    assert not playout.playing
    with pytest.raises(ValueError, match="16000"):
        playout.add(seconds(1), 16000)
