"""Microphone, loudspeaker and echo together, and devices that are pulled out."""

from __future__ import annotations

import numpy as np
import pytest

from audio import soundcard
from audio.echo import Headset
from audio.outlet import Outlet
from audio.soundcard import BLOCK, Choice, Soundcard
from engine.errors import UnpausedError
from tests.audio.sound_system import UNAVAILABLE, FakeDevice, FakeSystem, PortAudioError, install


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> FakeSystem:
    monkeypatch.setattr(soundcard, "_RETRY_S", 0.0)
    return install(monkeypatch, FakeDevice("USB", inputs=1, outputs=2), FakeDevice("Other"))


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def card(system: FakeSystem, notices: list[str]) -> Soundcard:
    return Soundcard(Choice(), Headset(), notices.append)


def streams(system: FakeSystem) -> list:
    return [system.open_streams(kind)[-1] for kind in ("input", "output")]


def test_the_microphone_comes_as_blocks_at_16_khz(system: FakeSystem, card: Soundcard) -> None:
    recording, _ = streams(system)
    tone = 0.5 * np.sin(np.arange(48_000) * 2 * np.pi * 440 / 48_000)
    recording.feed(tone)
    blocks = card.read()
    assert all(block.shape == (BLOCK,) for block in blocks)
    samples = np.concatenate(blocks)
    assert 15_000 < len(samples) <= 16_000
    spectrum = np.abs(np.fft.rfft(samples[-8000:]))
    assert spectrum.argmax() * 16_000 / 8000 == pytest.approx(440, abs=2)
    assert card.level == pytest.approx(0.35, abs=0.02)
    assert card.missed_ms == 0 and card.blocks == 50


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100])
def test_any_rate_comes_out_right(
    rate_hz: int, monkeypatch: pytest.MonkeyPatch, notices: list[str]
) -> None:
    system = install(monkeypatch, FakeDevice("A", inputs=2, outputs=2, rates_hz=(rate_hz,)))
    card = Soundcard(Choice(), Headset(), notices.append)
    recording, _ = streams(system)
    recording.feed(np.full(rate_hz * 2, 0.25))
    samples = np.concatenate(card.read())
    assert len(samples) == pytest.approx(32_000, abs=1200)
    assert np.allclose(samples[4000:], 0.25, atol=0.01)
    assert bool(notices) == (rate_hz == 8_000)


def test_a_device_that_comes_back_is_used_again(
    system: FakeSystem, card: Soundcard, notices: list[str]
) -> None:
    outlets: list[Outlet] = []
    card.moved = outlets.append
    recording, playing = streams(system)
    recording.feed(np.zeros(9600), overflow=True)
    missed_ms, blocks = card.missed_ms, card.blocks
    recording.pull_out()
    system.devices[0].refusal = PortAudioError("gone", UNAVAILABLE)
    assert card.read() == []
    assert "microphone stopped" in notices[-1] and playing.closed
    for _ in range(3):
        assert card.read() == []
    assert len(notices) == 1 and system.restarts >= 1
    assert (card.missed_ms, card.blocks) == (missed_ms, blocks)

    system.devices[0].refusal = None
    assert card.read() == []
    assert "listening again: USB" in notices[-1]
    assert outlets == [card.outlet]
    recording, _ = streams(system)
    recording.feed(np.full(9600, 0.1))
    assert len(card.read()) >= 4
    assert (card.missed_ms, card.blocks) == (missed_ms, blocks + 10)


def test_another_default_device_takes_over(
    system: FakeSystem, card: Soundcard, notices: list[str]
) -> None:
    streams(system)[1].pull_out()
    system.devices[:] = [FakeDevice("Built-in", inputs=2, outputs=2)]
    card.read()
    card.read()
    assert "loudspeaker stopped" in notices[0] and "Built-in" in notices[1]


def test_a_device_that_stays_away_is_given_up(
    system: FakeSystem, card: Soundcard, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams(system)[0].pull_out()
    system.devices.clear()
    card.read()
    monkeypatch.setattr(soundcard, "_PATIENCE_S", 0.0)
    with pytest.raises(UnpausedError, match="no microphone was found"):
        card.read()


def test_a_mute_microphone_is_said_once(
    system: FakeSystem, card: Soundcard, notices: list[str]
) -> None:
    recording, _ = streams(system)
    for _ in range(3):
        recording.feed(np.zeros(2 * 48_000))
        card.read()
    assert len(notices) == 1 and "nothing but zeros" in notices[0]
    recording.feed(np.full(4800, 0.1))
    card.read()


def test_counting_begins_where_listening_does(system: FakeSystem, card: Soundcard) -> None:
    recording, playing = streams(system)
    recording.feed(np.full(5 * 48_000, 0.1), overflow=True)  # nobody reads while models load
    playing.drain(3, underflow=True)
    card.begin()
    assert (card.missed_ms, card.blocks, card.underflows) == (0, 0, 0)
    recording.feed(np.full(4800, 0.1))
    assert len(card.read()) <= 3  # nothing of before
    assert card.blocks == 5 and card.missed_ms == 0


def test_what_cannot_be_opened_leaves_nothing_open(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PortAudioError("Device unavailable", UNAVAILABLE)

    monkeypatch.setattr(system, "OutputStream", refuse)
    with pytest.raises(UnpausedError, match="loudspeaker USB is in use"):
        Soundcard(Choice(), Headset(), print)
    assert not system.open_streams("input")


def test_the_echo_gets_what_was_played_and_when(system: FakeSystem, notices: list[str]) -> None:
    class Spy(Headset):
        def process(self, near: np.ndarray, far: np.ndarray, delay_ms: float) -> np.ndarray:
            calls.append((near, far, delay_ms))
            return near

    calls: list[tuple[np.ndarray, np.ndarray, float]] = []
    card = Soundcard(Choice(), Spy(), notices.append)
    recording, playing = streams(system)
    card.outlet.write(np.full(4800, 0.5, np.float32))
    playing.drain(5, ahead_s=0.08)
    recording.feed(np.full(4800, 0.5), age_s=0.03)
    card.read()
    near, far, delay_ms = calls[-1]
    assert len(far) == pytest.approx(len(near), abs=20) and far.max() > 0.4
    # Both are 100 ms long. The last far block of 20 ms is heard in 80 ms, so the first just now;
    # the last near block was recorded 30 ms ago, so the first 110 ms ago.
    assert delay_ms == pytest.approx(110, abs=20)
