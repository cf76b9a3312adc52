"""Rooms: a recording heard in real time or faster, and the devices of a stand-in PortAudio."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from audio.dialogue import Dialogue
from audio.dialogue_events import Event, Measured, RoundOver
from audio.echo import Headset
from audio.frames import STT_RATE_HZ
from audio.player import Player
from audio.rounds import Parts, Request
from audio.soundcard import Choice, Soundcard
from audio.turn import Turn
from tests.audio.people import Loudness, Speech, Talk, ToneVoice
from tests.audio.sound_system import FakeDevice, FakeSystem, RealTime, install
from ui.listen_room import FILE_RATE_HZ, FileRoom, LiveRoom

WAIT_S = 20.0  # for what happens soon; only a failing test takes it


class Company:
    """People without models in a dialogue; what happens is in `events`."""

    def __init__(self, transcribe_s: float = 0.0) -> None:
        self.say, self.talk = Speech(), Talk(reply_text="It is blue.")
        self.events: list[Event] = []
        self.listeners: list[Callable[[Event], None]] = []
        self._transcribe_s = transcribe_s

    def dialogue(self, room: FileRoom | None = None) -> Dialogue:
        return Dialogue(
            self._open_turn,
            self._transcribe,
            self._take,
            Loudness(),
            self.say.judge,
            runner=room.runner if room else None,
            clock=room.clock if room else time.perf_counter,
        )

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def _take(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)
        self.events.append(event)

    def _transcribe(self, samples: np.ndarray) -> str:
        time.sleep(self._transcribe_s)
        return self.say.transcribe(samples)

    @contextmanager
    def _open_turn(self, request: Request) -> Iterator[Parts]:
        def begin(text: str) -> Turn:
            return Turn(self.talk.reply, ToneVoice(), text=text)  # type: ignore[arg-type]

        yield Parts(self.talk, begin, "scripted")


def quiet(seconds: float) -> np.ndarray:
    return np.zeros(int(seconds * STT_RATE_HZ), np.float32)


def played(company: Company, recording: np.ndarray, fast: bool) -> tuple[FileRoom, float]:
    """Hear the recording; how many seconds of it nobody had to wait for."""
    room = FileRoom(recording, fast)
    dialogue = company.dialogue(room)
    player = Player(room.outlet, lambda g, n, ago: dialogue.played(g, n, None, ago), room.clock)
    company.listeners.append(player.take)
    dialogue.listen(True)
    room.run(dialogue, player, threading.Event())
    dialogue.close()
    return room, room.clock() - time.perf_counter()


def test_a_recording_is_answered_on_its_own_time_line() -> None:
    company = Company()
    question = company.say("Why is the sky blue?")
    recording = np.concatenate([quiet(1), question, quiet(3), company.say("And then?"), quiet(1)])
    room, skipped_s = played(company, recording, fast=True)
    assert company.talk.asked == ["Why is the sky blue?", "And then?"]
    assert [event.finish for event in company.of(RoundOver)] == ["complete", "complete"]
    speech = np.abs(room.speech().astype(int))
    began_s = np.flatnonzero(speech > 500)[0] / FILE_RATE_HZ
    (first, _) = company.of(Measured)
    assert began_s == pytest.approx(
        1 + len(question) / STT_RATE_HZ + first.total_ms / 1000, abs=0.1
    )
    assert len(speech) / FILE_RATE_HZ >= len(recording) / STT_RATE_HZ
    assert skipped_s > 0.5


def test_what_is_computed_takes_its_time_and_is_measured_even_when_fast() -> None:
    company = Company(transcribe_s=0.4)
    recording = np.concatenate([quiet(0.5), company.say("Why is the sky blue?"), quiet(2)])
    played(company, recording, fast=True)
    (measured,) = company.of(Measured)
    stages = {stage.name: stage.ms for stage in measured.stages}
    assert stages["transcription"] >= 399
    assert measured.total_ms == pytest.approx(sum(stages.values()), abs=1)


def test_real_time_takes_as_long_as_the_recording() -> None:
    company = Company()
    recording = np.concatenate([quiet(0.3), company.say("Why is the sky blue?"), quiet(0.3)])
    _, skipped_s = played(company, recording, fast=False)
    assert skipped_s == pytest.approx(0, abs=0.001)
    assert len(company.of(RoundOver)) == 1


def test_silence_is_no_turn_and_comes_to_an_end() -> None:
    company = Company()
    room, _ = played(company, quiet(5), fast=True)
    assert not company.of(RoundOver) and not room.speech().any()


def test_it_stops_when_it_is_told() -> None:
    company, stopped = Company(), threading.Event()
    stopped.set()
    room = FileRoom(quiet(60), fast=False)
    dialogue = company.dialogue(room)
    room.run(dialogue, Player(room.outlet, lambda *_: None, room.clock), stopped)
    assert len(room.speech()) == 0


# With devices


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> FakeSystem:
    return install(monkeypatch, FakeDevice("USB", inputs=1, outputs=1, rate_hz=16_000))


def live(company: Company, notices: list[str]) -> LiveRoom:
    card = Soundcard(Choice(), Headset(), notices.append)
    dialogue = company.dialogue()
    player = Player(card.outlet, lambda g, n, ago: dialogue.played(g, n, None, ago))
    company.listeners.append(player.take)
    dialogue.listen(True)
    room = LiveRoom(card, dialogue, player)
    room.start()
    return room


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_question_into_the_microphone_is_answered_from_the_loudspeaker(
    system: FakeSystem,
) -> None:
    company, notices = Company(), list[str]()
    with RealTime(system) as hardware:
        room = live(company, notices)
        hardware.say(np.concatenate([quiet(0.3), company.say("Why is the sky blue?")]))
        until(lambda: company.of(RoundOver))
        room.stop()
    (over,) = company.of(RoundOver)
    assert over.record.transcript == "Why is the sky blue?" and over.heard == "It is blue."
    assert np.sum(np.abs(np.concatenate(hardware.heard)) > 0.1) > 0.3 * 16_000
    assert room.card.missed_ms == 0 and not room.running and room.fault is None
    assert not system.open_streams("input") and not system.open_streams("output")


def test_a_device_unplugged_mid_turn_and_put_back(system: FakeSystem) -> None:
    company, notices = Company(), list[str]()
    company.talk.reply_text = " ".join(["Waves go far."] * 2)
    with RealTime(system) as hardware:
        room = live(company, notices)
        hardware.say(np.concatenate([quiet(0.3), company.say("Why?")]))
        until(lambda: any(np.abs(part).max() > 0.1 for part in list(hardware.heard)))
        system.open_streams("output")[-1].pull_out()
        until(lambda: len(notices) == 2)
        until(lambda: company.of(RoundOver))
        hardware.say(np.concatenate([quiet(0.3), company.say("And now?")]))
        until(lambda: len(company.of(RoundOver)) == 2)
        room.stop()
    assert "stopped" in notices[0] and "listening again" in notices[1]
    assert company.talk.asked == ["Why?", "And now?"]


def test_a_device_that_never_comes_back_ends_the_room_with_its_reason(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audio.soundcard._PATIENCE_S", 0.0)
    monkeypatch.setattr("audio.soundcard._RETRY_S", 0.0)
    company, notices = Company(), list[str]()
    room = live(company, notices)
    system.devices.clear()
    system.open_streams("input")[-1].pull_out()
    until(lambda: not room.running)
    assert room.fault is not None and "no microphone" in str(room.fault)


def test_a_defect_ends_the_room_in_words(
    system: FakeSystem, caplog: pytest.LogCaptureFixture
) -> None:
    company = Company()
    room = live(company, [])

    def fail() -> None:
        raise RuntimeError("a defect")

    room.call(fail)
    until(lambda: not room.running)
    assert "the log has the details" in str(room.fault) and "a defect" in caplog.text
    assert not system.open_streams("input")
