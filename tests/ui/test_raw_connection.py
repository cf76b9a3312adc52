"""Bare PCM16 over the voice socket, and the player that its client is taken to be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient, WebSocketTestSession

from tests.ui.fakes import RATE_HZ
from ui.protocol import pack_speech
from ui.raw_connection import AHEAD_S, RawPlayer
from ui.session import Session
from ui.socket import PATH, VoiceSocket
from ui.visitors import Visitors

RAW_HZ = 16000


@pytest.fixture
def client(visitors: Visitors) -> Iterator[TestClient]:
    app = Starlette(routes=[WebSocketRoute(PATH, VoiceSocket(visitors).handle)])
    with TestClient(app) as made:
        yield made


def hello(session: str, **more: Any) -> str:
    return json.dumps({"type": "hello", "session": session, "format": "pcm16", **more})


def pcm(seconds: float, loud: bool, rate_hz: int = RAW_HZ) -> list[bytes]:
    samples = np.full(int(seconds * rate_hz), 9000 if loud else 0, "<i2").tobytes()
    frame = rate_hz // 25
    return [samples[at : at + frame] for at in range(0, len(samples), frame)]


def events_until(socket: WebSocketTestSession, kind: str) -> tuple[list[dict[str, Any]], bytes]:
    """Everything up to the first event of `kind`, and the sound among it."""
    events: list[dict[str, Any]] = []
    sound = b""
    for _ in range(2000):
        message = socket.receive()
        if message.get("bytes"):
            sound += message["bytes"]
        elif message.get("text"):
            events.append(json.loads(message["text"]))
            if events[-1]["type"] == kind:
                return events, sound
        elif message["type"] == "websocket.close":
            break
    raise AssertionError(f"no {kind}")


@pytest.mark.parametrize("rate_hz", [8000, 16000, 44100, 48000])
def test_a_question_in_bare_pcm_is_answered_in_bare_pcm(client: TestClient, rate_hz: int) -> None:
    with client.websocket_connect(PATH) as socket:
        socket.send_text(hello("new", sample_rate=rate_hz))
        for frame in [
            *pcm(0.4, False, rate_hz),
            *pcm(1.0, True, rate_hz),
            *pcm(0.8, False, rate_hz),
        ]:
            socket.send_bytes(frame)
        events, _ = events_until(socket, "transcript")
        assert events[-1] == {
            "type": "transcript",
            "role": "user",
            "text": "Why is the sky blue?",
            "final": True,
        }
        sound = b""
        while len(sound) < rate_hz:  # half a second of a tone
            sound += socket.receive().get("bytes", b"")
    samples = np.frombuffer(sound, "<i2")
    crossings = np.count_nonzero(np.diff(np.signbit(samples))) / (len(samples) / rate_hz)
    assert crossings == pytest.approx(880, rel=0.1)


def test_a_strangers_session_ends_with_its_socket(client: TestClient, visitors: Visitors) -> None:
    with client.websocket_connect(PATH) as socket:
        socket.send_text(hello("new", sample_rate=16000))
        for frame in [*pcm(1.0, True), *pcm(0.8, False)]:
            socket.send_bytes(frame)
        events_until(socket, "transcript")
        assert len(visitors._sessions) == 1
    assert not visitors._sessions


@pytest.mark.parametrize("more", [{}, {"sample_rate": 100}, {"sample_rate": "x"},
                                  {"format": "opus", "sample_rate": 16000}])  # fmt: skip
def test_a_format_that_is_none_is_refused(client: TestClient, more: dict[str, Any]) -> None:
    with client.websocket_connect(PATH) as socket:
        socket.send_text(hello("new", **more))
        events, _ = events_until(socket, "error")
        assert "Refused" not in events[-1]["message"] or "sample_rate" in events[-1]["message"]


@pytest.mark.parametrize("bad", [b"\x01", b"\0" * 100_000])
def test_odd_bytes_and_too_many_are_refused_and_the_socket_survives(
    client: TestClient, session: Session, bad: bytes
) -> None:
    with client.websocket_connect(PATH) as socket:
        socket.send_text(hello(session.id, sample_rate=16000))
        socket.send_bytes(bad)
        events, _ = events_until(socket, "error")
        assert "PCM16" in events[-1]["message"]
        for frame in [*pcm(1.0, True), *pcm(0.8, False)]:
            socket.send_bytes(frame)
        events_until(socket, "transcript")


def speech(player: RawPlayer, turn: int, seconds: float) -> None:
    player.take({"type": "speech", "turn": turn, "rate_hz": RATE_HZ})
    for _ in range(int(seconds * 50)):
        player.take(pack_speech(turn, 0, np.ones(RATE_HZ // 50, "<i2").tobytes()))
    player.take({"type": "speech_end", "turn": turn, "samples": int(seconds * RATE_HZ)})


def test_speech_is_sent_a_little_ahead_of_real_time() -> None:
    player = RawPlayer(RAW_HZ)
    speech(player, 1, 1.0)
    sent = sum(len(piece) // 2 for piece in player.due(10.0))
    assert sent <= (AHEAD_S + 0.02) * RAW_HZ
    report = player.report(10.02)
    assert report is not None and report["samples"] == pytest.approx(0.02 * RATE_HZ, abs=2)
    for step in range(60):
        sent += sum(len(piece) // 2 for piece in player.due(10.0 + 0.02 * step))
    assert sent == pytest.approx(RAW_HZ, rel=0.01)
    report = player.report(12.0)
    assert report is not None and report["samples"] == 50 * (RATE_HZ // 50)


def test_a_pause_clears_what_is_ahead_and_resumes() -> None:
    player = RawPlayer(RAW_HZ)
    speech(player, 1, 1.0)
    player.due(10.0)
    assert player.take({"type": "pause", "turn": 1}) == [{"type": "clear"}]
    assert player.due(11.0) == []
    player.take({"type": "resume", "turn": 1})
    assert player.due(11.0)
    assert player.take({"type": "flush", "turn": 1}) == [{"type": "clear"}]
    assert player.due(12.0) == []


def test_speech_of_a_turn_that_was_stopped_is_dropped() -> None:
    player = RawPlayer(RAW_HZ)
    speech(player, 2, 0.1)
    assert player.take({"type": "flush", "turn": 1}) == []
    player.take(pack_speech(1, 0, b"\0\0" * 100))
    assert len(player.due(10.0)) <= 5
