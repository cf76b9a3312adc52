"""Microphone frames to turns, with loudness for a detector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ui.conftest import until
from tests.ui.fakes import REPLY, FakePipeline
from ui.hearing import Hearing, Inbox
from ui.protocol import MicrophoneFrame, Talk
from ui.session import Session
from ui.visitors import Visitors

FRAME = 320


def frames(take: int, *parts: tuple[float, bool]) -> list[MicrophoneFrame]:
    """(seconds, loud) parts as frames of 20 ms."""
    samples = np.concatenate([np.full(int(s * 16000), 9000 if loud else 0) for s, loud in parts])
    pcm = samples.astype("<i2").tobytes()
    chunks = [pcm[at : at + 2 * FRAME] for at in range(0, len(pcm), 2 * FRAME)]
    return [MicrophoneFrame(take, number, chunk) for number, chunk in enumerate(chunks)]


@pytest.fixture
def hearing(session: Session, visitors: Visitors) -> Hearing:
    return Hearing(session.dialogue)


@pytest.fixture
def events(session: Session) -> list[Any]:
    """What the session's socket would have been told."""
    told: list[Any] = []
    session.attach(lambda: told.extend(session.outgoing()))
    return told


def errors(events: list[Any]) -> list[str]:
    return [event["message"] for event in events if isinstance(event, dict)
            and event["type"] == "error"]  # fmt: skip


def test_push_to_talk_answers_what_was_said_between_press_and_release(
    hearing: Hearing, session: Session, pipeline: FakePipeline
) -> None:
    spoken = frames(1, (1.0, False), (0.8, True), (0.6, False))
    hearing.feed([Talk(1, True, "hold"), *spoken])
    assert not pipeline.heard and not session.active
    hearing.feed([Talk(1, False, "hold")])
    assert session.wait_idle(30)
    (heard,) = pipeline.heard
    assert 0.8 < len(heard) / 16000 < 1.8  # the speech with its margins, not all of the silence
    assert session.view().messages[-1]["content"] == REPLY


def test_endpointing_counts_from_the_end_of_the_sound(
    hearing: Hearing, session: Session, events: list[Any]
) -> None:
    hearing.feed([Talk(1, True, "hold"), *frames(1, (0.8, True), (0.64, False))])
    hearing.feed([Talk(1, False, "hold")])
    assert session.wait_idle(30)
    (done,) = [event for event in events if event["type"] == "done"]
    assert done["stages"][0]["ms"] == pytest.approx(640, abs=50)


@pytest.mark.parametrize("parts", [[(2.0, False)], [(0.1, True), (1.0, False)], []])
def test_silence_and_clicks_are_no_turn(
    hearing: Hearing, pipeline: FakePipeline, events: list[Any], parts: list[tuple[float, bool]]
) -> None:
    recorded = frames(1, *parts) if parts else []
    hearing.feed([Talk(1, True, "hold"), *recorded, Talk(1, False, "hold")])
    assert not pipeline.turns
    assert "No speech was heard" in errors(events)[0]


def test_frames_of_another_take_or_of_none_are_dropped(
    hearing: Hearing, pipeline: FakePipeline
) -> None:
    hearing.feed(frames(0, (1.0, True)))
    hearing.feed([Talk(5, True, "hold"), *frames(4, (1.0, True)), Talk(5, False, "hold")])
    hearing.feed([Talk(3, True, "hold"), *frames(3, (1.0, True)), Talk(3, False, "hold")])
    assert not pipeline.turns


def test_hands_free_answers_at_the_end_of_speech(
    hearing: Hearing, session: Session, pipeline: FakePipeline, events: list[Any]
) -> None:
    hearing.feed([Talk(1, True, "free"), *frames(1, (0.5, False), (1.0, True), (1.0, False))])
    assert session.wait_idle(30)
    assert len(pipeline.heard) == 1
    assert [event["on"] for event in events if event["type"] == "hearing"] == [True, False]


def test_speaking_over_the_reply_stops_it_and_is_answered(
    hearing: Hearing, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 4
    session.start_text("Why?")
    until(session, lambda: session.view().messages[-1]["content"] == "The sky is blue.")
    hearing.feed([Talk(1, True, "free"), *frames(1, (0.9, True))])
    assert session.wait_idle(30)
    assert session.view().messages[-1]["content"].endswith("*Stopped.*")
    pipeline.hold_after = None
    pipeline.pace.set()
    hearing.feed(frames(1, (0.1, True), (1.0, False)))
    until(session, lambda: len(pipeline.turns) == 2)
    assert session.wait_idle(30)
    assert session.view().messages[-1]["content"] == REPLY


def test_speaking_over_playback_stops_it_once_and_is_answered(
    hearing: Hearing, session: Session, pipeline: FakePipeline, events: list[Any]
) -> None:
    session.set_sound(True)
    session.start_text("Why?")
    assert session.wait_idle(30) and session.active  # nobody reports that anything was played
    hearing.feed([Talk(1, True, "free"), *frames(1, (1.0, True), (1.0, False))])
    until(session, lambda: len(pipeline.turns) == 2)
    assert session.wait_idle(30)
    flushes = [e for e in events if isinstance(e, dict) and e["type"] == "flush"]
    assert [flush["turn"] for flush in flushes] == [1]


def test_a_cough_does_not_interrupt(
    hearing: Hearing, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 4
    session.start_text("Why?")
    until(session, lambda: session.view().messages[-1]["content"] == "The sky is blue.")
    hearing.feed([Talk(1, True, "free")])
    for _ in range(4):
        hearing.feed(frames(1, (0.16, True), (0.84, False)))
    assert session.view().running
    pipeline.pace.set()
    assert session.wait_idle(30)
    assert len(pipeline.turns) == 1


def test_pressing_the_button_interrupts_at_once(
    hearing: Hearing, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.pace.clear()
    session.start_text("Why?")
    hearing.feed([Talk(1, True, "hold")])
    assert session.wait_idle(30)


def test_a_slow_client_loses_its_oldest_frames_and_they_are_counted() -> None:
    inbox = Inbox(max_frames=10)
    inbox.put(Talk(1, True, "free"))
    for frame in frames(1, (0.5, True)):
        inbox.put(frame)
    items = inbox.take()
    assert len(items) == 10 and items[0] == Talk(1, True, "free")
    assert isinstance(items[-1], MicrophoneFrame) and items[-1].sequence == 24
    assert inbox.dropped == 16 and inbox.take() == []


def test_a_flood_of_presses_is_bounded() -> None:
    inbox = Inbox(max_frames=10)
    for take in range(1000):
        inbox.put(Talk(take, True, "hold"))
    items = inbox.take()
    assert len(items) == 10 and items[-1] == Talk(999, True, "hold")
