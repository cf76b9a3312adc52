"""A session's voice: paced by its playback, cut where it was interrupted."""

from __future__ import annotations

import pytest

from tests.ui.client import SPEECH, Client, contents, run
from tests.ui.conftest import until
from tests.ui.fakes import RATE_HZ, REPLY, FakeConversation, FakePipeline, services
from ui.services import Runtime
from ui.session import Session
from ui.visitors import Visitors


def test_speech_is_sent_with_its_turn_and_paced(session: Session) -> None:
    client = Client(session)
    turn = session.start_text("Why?")
    run(session)
    client.receive()
    assert client.of("speech") == [{"type": "speech", "turn": turn, "rate_hz": RATE_HZ}]
    assert len(client.pcm[turn]) < 2 * RATE_HZ * 0.7
    assert session.active and not client.of("speech_end")
    while not client.of("speech_end"):
        session.played(turn, len(client.pcm[turn]) // 2, done=False)
    total = client.of("speech_end")[0]["samples"]
    assert len(client.pcm[turn]) == 2 * total == 2 * int(3.5 * RATE_HZ)
    session.played(turn, total, done=True)
    assert not session.active


def test_without_a_socket_or_with_sound_off_nothing_is_spoken(session: Session) -> None:
    session.set_sound(True)
    assert not session.speaks
    client = Client(session, sound=False)
    session.start_text("Why?")
    run(session)
    assert not client.of("speech") and not client.pcm


def test_sound_off_silences_the_turn_but_not_its_text(session: Session) -> None:
    client = Client(session)
    turn = session.start_text("Why?")
    run(session)
    session.set_sound(False)
    assert client.of("flush")[-1]["turn"] == turn
    assert not session.active and contents(session)[-1][1] == REPLY


def test_an_interrupted_spoken_reply_becomes_what_was_heard(
    visitors: Visitors, pipeline: FakePipeline
) -> None:
    conversation = FakeConversation()
    session = Visitors(Runtime(services(pipeline, make_conversation=lambda: conversation))).open()
    client = Client(session)
    turn = session.start_voice(SPEECH, 200.0)
    run(session)
    while len(client.pcm.get(turn, b"")) < 2 * RATE_HZ * 1.6:
        client.receive()
        session.played(turn, len(client.pcm[turn]) // 2, done=False)
    session.stop(turn, samples=int(1.5 * RATE_HZ))
    heard = conversation.messages[-1]["content"]
    assert REPLY.startswith(heard) and 0 < len(heard) < len(REPLY)
    assert contents(session)[-1] == ("assistant", f"{heard} …")
    assert client.of("flush")[-1]["turn"] == turn


def test_a_reply_stopped_before_its_first_sound_leaves_nothing(pipeline: FakePipeline) -> None:
    conversation = FakeConversation()
    session = Visitors(Runtime(services(pipeline, make_conversation=lambda: conversation))).open()
    Client(session)
    turn = session.start_voice(SPEECH, 200.0)
    run(session)
    session.stop(turn, samples=0)
    assert conversation.messages == []
    assert contents(session)[-1] == ("assistant", "*Stopped before it spoke.*")


def test_playback_that_never_reports_does_not_hold_the_session(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.outbox.STALL_S", -1.0)
    client = Client(session)
    session.start_text("Why?")
    run(session)
    client.receive()
    client.receive()
    assert client.of("speech_end") and not session.active


def test_closing_the_socket_cancels_the_turn(session: Session, pipeline: FakePipeline) -> None:
    client = Client(session)
    pipeline.pace.clear()
    session.start_text("Why?")
    until(session, lambda: bool(pipeline.turns))
    session.detach(client.wake)
    run(session)
    assert not session.view().running


def test_a_socket_that_was_replaced_cannot_cancel_anything(
    session: Session, pipeline: FakePipeline
) -> None:
    old = Client(session)
    Client(session)
    pipeline.pace.clear()
    session.start_text("Why?")
    session.detach(old.wake)
    assert session.view().running and session.speaks
    pipeline.pace.set()
    run(session)
