"""The microphone's and the loudspeaker's callbacks and counters, driven block by block."""

from __future__ import annotations

import time

import numpy as np
import pytest

from audio.devices import choose, negotiate
from audio.microphone import Microphone
from audio.speaker import Speaker
from engine.errors import UnpausedError
from tests.audio.sound_system import (
    UNAVAILABLE,
    FakeDevice,
    FakeStream,
    FakeSystem,
    PortAudioError,
    install,
)

RATE_HZ = 48_000
BLOCK = 960


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> FakeSystem:
    return install(
        monkeypatch,
        FakeDevice("USB", inputs=1, outputs=2, channels=(1, 2)),
        FakeDevice("Array", inputs=2, channels=(2,)),
    )


class Clock:
    """Stands still, so that a busy machine changes nothing."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    return clock


def microphone(system: FakeSystem, name: str = "USB") -> tuple[Microphone, FakeStream]:
    device = choose("input", name)
    made = Microphone(device, negotiate(device, "input"))
    return made, system.streams[-1]


def speaker(system: FakeSystem) -> tuple[Speaker, FakeStream]:
    device = choose("output")
    made = Speaker(device, negotiate(device, "output"))
    return made, system.streams[-1]


def test_what_was_recorded_is_read_once_and_is_a_copy(system: FakeSystem, clock: Clock) -> None:
    recorder, stream = microphone(system)
    sound = np.linspace(-1, 1, 5 * BLOCK, dtype=np.float32)
    stream.feed(sound)
    samples, began = recorder.read()
    assert np.array_equal(samples, sound)
    assert clock.now - 0.1 <= began <= clock.now
    assert len(recorder.read()[0]) == 0
    assert recorder.blocks == 5 and recorder.missed == 0


def test_several_channels_become_one(system: FakeSystem) -> None:
    recorder, stream = microphone(system, "Array")
    stream.feed(np.array([[0.5, 0.1]] * BLOCK, np.float32))
    assert np.allclose(recorder.read()[0], 0.3)


def test_what_is_missed_is_counted(system: FakeSystem) -> None:
    recorder, stream = microphone(system)
    stream.feed(np.zeros(BLOCK), overflow=True)
    assert recorder.missed == BLOCK  # the system's own loss
    recorder.read()
    stream.feed(np.zeros(5 * RATE_HZ))  # five seconds unread; four are kept
    assert len(recorder.read()[0]) == 4 * RATE_HZ
    assert recorder.missed == BLOCK + RATE_HZ


def test_a_device_that_was_pulled_out_has_stalled(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for made, stream in (microphone(system), speaker(system)):
        assert not made.stalled
        now = time.perf_counter()
        monkeypatch.setattr("time.perf_counter", lambda now=now: now + 6.0)
        assert made.stalled  # no block for six seconds
        monkeypatch.undo()
        assert not made.stalled
        stream.pull_out()
        assert made.stalled
        made.close()
        made.close()


def test_a_device_that_is_taken_before_it_is_opened(system: FakeSystem) -> None:
    device = choose("input")
    agreed = negotiate(device, "input")
    system.devices[0].refusal = PortAudioError("Device unavailable", UNAVAILABLE)
    with pytest.raises(UnpausedError, match="in use"):
        Microphone(device, agreed)
    with pytest.raises(UnpausedError, match="in use"):
        Speaker(device, agreed)


def test_speech_comes_out_on_every_channel_and_silence_after_it(system: FakeSystem) -> None:
    made, stream = speaker(system)
    player = made.outlet
    stream.channels = 2
    speech = np.full(BLOCK + 100, 0.25, np.float32)
    player.write(speech)
    out = stream.drain(3)
    assert out.shape == (3 * BLOCK, 2)
    assert np.all(out[: BLOCK + 100] == 0.25) and np.all(out[BLOCK + 100 :] == 0)


def test_what_was_heard_follows_the_device_not_the_writing(
    system: FakeSystem, clock: Clock
) -> None:
    made, stream = speaker(system)
    player = made.outlet
    player._clock = clock
    player.write(np.full(20 * BLOCK, 0.1, np.float32))
    assert player.heard() == 0
    stream.drain(10)  # the last of them is heard 80 to 100 ms from now
    assert 4 * BLOCK <= player.heard() <= 7 * BLOCK
    assert player.began == (0, clock.now + 0.08)
    clock.now += 0.11
    assert player.heard() == 10 * BLOCK


def test_a_flush_silences_the_next_block_and_says_how_far_it_came(system: FakeSystem) -> None:
    made, stream = speaker(system)
    player = made.outlet
    player.write(np.full(20 * BLOCK, 0.1, np.float32))
    stream.drain(3)
    assert player.flush() == 3 * BLOCK
    player.write(np.full(BLOCK, 0.7, np.float32))  # what comes after it is played
    out = stream.drain(2)
    assert np.all(out[:BLOCK] == np.float32(0.7)) and np.all(out[BLOCK:] == 0)
    player.flush()
    assert np.all(stream.drain(1) == 0)


def test_running_dry_is_a_gap_only_while_more_is_expected(system: FakeSystem) -> None:
    made, stream = speaker(system)
    player = made.outlet
    player.expecting = True
    stream.drain(2)
    assert player.gaps == 0  # nothing has begun yet
    player.write(np.full(BLOCK + 10, 0.1, np.float32))
    stream.drain(4)
    assert player.gaps == 1
    player.write(np.full(BLOCK + 10, 0.1, np.float32))
    player.expecting = False
    stream.drain(4)
    assert player.gaps == 1 and made.underflows == 0
    stream.drain(1, underflow=True)
    assert made.underflows == 1


def test_room_bounds_what_waits(system: FakeSystem) -> None:
    made, stream = speaker(system)
    player = made.outlet
    assert player.room == 2 * RATE_HZ
    player.write(np.zeros(player.room, np.float32))
    assert player.room == 0
    stream.drain(1)
    assert player.room == BLOCK


def test_all_that_was_played_can_be_had_for_the_echo(system: FakeSystem, clock: Clock) -> None:
    made, stream = speaker(system)
    player = made.outlet
    stream.drain(1)
    player.write(np.full(BLOCK, 0.5, np.float32))
    stream.drain(2)
    played, when = player.played()
    expected = np.repeat([0, 0.5, 0], BLOCK).astype(np.float32)
    assert np.array_equal(played, expected)
    assert clock.now + 0.08 - 0.06 <= when <= clock.now + 0.08


def test_a_pause_keeps_what_waits_and_a_duck_plays_it_quieter(system: FakeSystem) -> None:
    made, stream = speaker(system)
    player = made.outlet
    player.expecting = True
    player.write(np.full(4 * BLOCK, 0.4, np.float32))
    stream.drain(1)
    player.paused = True
    assert np.all(stream.drain(5) == 0)
    assert player.waiting == 3 * BLOCK and player.gaps == 0
    player.paused, player.gain = False, 0.25
    assert np.allclose(stream.drain(1), 0.1)
    player.gain = 1.0
    assert np.allclose(stream.drain(1), 0.4)
