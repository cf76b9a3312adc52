"""A dialogue's speech on an outlet whose time a test moves."""

from __future__ import annotations

import numpy as np
import pytest

from audio.dialogue_events import Duck, Flush, Pause, Play, PlayEnd, Resume, SpeechOver
from audio.outlet import Outlet
from audio.player import LEAD_MS, Player

RATE_HZ = 8000
BLOCK_S = 0.02


class Stage:
    """An outlet, its player and what it reports; `pass_time` plays as a device would."""

    def __init__(self, rate_hz: int = RATE_HZ, latency_s: float = 0.0) -> None:
        self.now = 100.0
        self.outlet = Outlet(rate_hz, lambda: self.now)
        self.latency_s = latency_s
        self.reports: list[tuple[int, int, float]] = []
        self.player = Player(
            self.outlet, lambda *report: self.reports.append(report), lambda: self.now
        )

    def pass_time(self, seconds: float) -> np.ndarray:
        parts = []
        for _ in range(round(seconds / BLOCK_S)):
            out = np.zeros((int(self.outlet.rate_hz * BLOCK_S), 1), np.float32)
            self.outlet.fill(out, self.now + self.latency_s)
            self.now += BLOCK_S
            self.player.step()
            parts.append(out[:, 0])
        return np.concatenate(parts)


def speech(seconds: float, generation: int = 1, level: int = 16_384) -> Play:
    return Play(generation, np.full(int(seconds * RATE_HZ), level, np.int16), RATE_HZ, "words")


def test_clauses_follow_each_other_without_a_gap_and_are_reported() -> None:
    stage = Stage()
    for _ in range(3):
        stage.player.take(speech(0.5))
    stage.player.take(PlayEnd(1, int(1.5 * RATE_HZ)))
    heard = stage.pass_time(2.0)
    loud = np.flatnonzero(heard > 0.4)
    assert len(loud) == int(1.5 * RATE_HZ) and np.all(np.diff(loud) == 1)
    assert stage.reports[-1][:2] == (1, int(1.5 * RATE_HZ))
    counts = [samples for _, samples, _ in stage.reports]
    assert counts == sorted(counts) and len(counts) > 60
    assert not stage.player.playing and stage.player.gaps == 0


def test_the_first_report_says_how_long_ago_the_first_sample_was_audible() -> None:
    stage = Stage(latency_s=0.1)
    stage.player.take(speech(1.0))
    began = stage.now + 0.1
    stage.pass_time(0.16)
    _, samples, ago_ms = stage.reports[0]
    first_report = stage.now - 0.16 + 0.12  # the first step after it was audible
    assert 0 < samples <= 2 * BLOCK_S * RATE_HZ
    assert ago_ms == pytest.approx(1000 * (first_report - began), abs=1)


@pytest.mark.parametrize("device_hz", [44_100, 48_000, 16_000])
def test_another_rate_of_the_device_changes_no_count(device_hz: int) -> None:
    stage = Stage(device_hz)
    stage.player.take(speech(0.7))
    stage.player.take(speech(0.3))
    stage.player.take(PlayEnd(1, RATE_HZ))
    heard = stage.pass_time(1.3)
    assert np.sum(heard > 0.25) == pytest.approx(device_hz, rel=0.01)
    assert stage.reports[-1][1] == RATE_HZ


def test_little_is_handed_on_ahead_of_time() -> None:
    stage = Stage()
    stage.player.take(speech(10))
    stage.player.step()
    assert stage.outlet.waiting == LEAD_MS * RATE_HZ // 1000


def test_a_flush_is_silent_at_once_and_nothing_is_reported_after_it() -> None:
    stage = Stage()
    stage.player.take(speech(5))
    stage.pass_time(1.0)
    stage.player.take(Flush(1))
    reports = len(stage.reports)
    assert np.all(stage.pass_time(1.0) == 0)
    assert len(stage.reports) == reports and not stage.player.playing


def test_speech_of_the_next_generation_replaces_what_waits() -> None:
    stage = Stage()
    stage.player.take(speech(5))
    stage.pass_time(0.5)
    stage.player.take(speech(0.5, generation=2, level=8_192))
    stage.player.take(PlayEnd(2, RATE_HZ // 2))
    heard = stage.pass_time(1.0)
    assert heard.max() == pytest.approx(0.25, abs=0.01)
    assert stage.reports[-1][:2] == (2, RATE_HZ // 2)


def test_what_is_stale_changes_nothing() -> None:
    stage = Stage()
    stage.player.take(speech(1.0, generation=2))
    for stale in (speech(1.0, level=1000), Flush(1), Pause(1), Duck(1, True), PlayEnd(1, 5)):
        stage.player.take(stale)
    stage.player.take(SpeechOver())
    assert np.all(stage.pass_time(0.9) > 0.4)


def test_ducked_then_paused_then_resumed_nothing_is_lost() -> None:
    stage = Stage()
    stage.player.take(speech(1.0))
    stage.player.take(PlayEnd(1, RATE_HZ))
    heard = [stage.pass_time(0.2)]
    stage.player.take(Duck(1, True))
    quiet = stage.pass_time(0.2)
    stage.player.take(Pause(1))
    silent = stage.pass_time(1.0)
    stage.player.take(Resume(1))
    heard.append(stage.pass_time(1.0))
    assert np.all((quiet > 0.1) & (quiet < 0.15))
    assert np.all(silent == 0)
    assert np.sum(np.concatenate([*heard, quiet]) > 0.1) == RATE_HZ
    assert stage.reports[-1][1] == RATE_HZ and stage.player.gaps == 0


def test_speech_that_comes_too_late_is_a_gap() -> None:
    stage = Stage()
    stage.player.take(speech(0.5))
    stage.pass_time(1.0)
    stage.player.take(speech(0.5))
    stage.player.take(PlayEnd(1, RATE_HZ))
    stage.pass_time(1.0)
    assert stage.player.gaps == 1
    assert stage.reports[-1][1] == RATE_HZ


@pytest.mark.parametrize("device_hz", [RATE_HZ, 2 * RATE_HZ])
def test_it_goes_on_with_another_device(device_hz: int) -> None:
    stage = Stage()
    stage.player.take(speech(2.0))
    stage.player.take(PlayEnd(1, 2 * RATE_HZ))
    stage.pass_time(1.0)
    old = stage.outlet
    stage.outlet = Outlet(device_hz, lambda: stage.now)
    stage.player.attach(stage.outlet)
    heard = stage.pass_time(1.5)
    lost_s = old.waiting / RATE_HZ
    assert lost_s <= LEAD_MS / 1000
    assert np.sum(heard > 0.2) / device_hz == pytest.approx(1.0 - lost_s, abs=0.02)
    assert stage.reports[-1][1] == 2 * RATE_HZ and not stage.player.playing
