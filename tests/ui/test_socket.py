"""The voice socket over a real WebSocket handshake, in process."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from tests.ui.conftest import until
from tests.ui.fakes import RATE_HZ, REPLY, FakePipeline
from ui.session import Session
from ui.socket import OTHER_ORIGIN, PATH, TAKEN_OVER, UNKNOWN_SESSION, VoiceSocket
from ui.visitors import Visitors


@pytest.fixture
def client(visitors: Visitors) -> Iterator[TestClient]:
    app = Starlette(routes=[WebSocketRoute(PATH, VoiceSocket(visitors).handle)])
    with TestClient(app) as made:
        yield made


@pytest.fixture
def joined(client: TestClient, session: Session) -> Iterator[WebSocketTestSession]:
    with client.websocket_connect(PATH) as socket:
        say(socket, type="hello", session=session.id)
        assert next_event(socket, "ready")["turn"] == 0
        yield socket


def say(socket: WebSocketTestSession, **message: Any) -> None:
    socket.send_text(json.dumps(message))


def next_event(socket: WebSocketTestSession, kind: str) -> dict[str, Any]:
    """The next event of `kind`; others are skipped."""
    for _ in range(500):
        message = socket.receive()
        if message.get("text"):
            event = json.loads(message["text"])
            if event["type"] == kind:
                return dict(event)
        elif message["type"] == "websocket.close":
            raise WebSocketDisconnect(message["code"])
    raise AssertionError(f"no {kind}")


def microphone(take: int, seconds: float, loud: bool) -> list[bytes]:
    pcm = np.full(int(seconds * 16000), 9000 if loud else 0, "<i2").tobytes()
    return [
        struct.pack("<BBHI", 1, 0, at // 640, take) + pcm[at : at + 640]
        for at in range(0, len(pcm), 640)
    ]


def test_another_sites_page_is_refused(client: TestClient) -> None:
    with (
        pytest.raises(WebSocketDisconnect) as refused,
        client.websocket_connect(PATH, headers={"origin": "http://evil.test"}),
    ):
        pass
    assert refused.value.code == OTHER_ORIGIN


@pytest.mark.parametrize("origin", ["http://testserver", "https://TESTSERVER"])
def test_the_page_itself_is_let_in(client: TestClient, session: Session, origin: str) -> None:
    with client.websocket_connect(PATH, headers={"origin": origin}) as socket:
        say(socket, type="hello", session=session.id)
        next_event(socket, "ready")


def test_an_unknown_session_is_closed(client: TestClient) -> None:
    with client.websocket_connect(PATH) as socket:
        say(socket, type="hello", session="guess")
        with pytest.raises(WebSocketDisconnect) as closed:
            next_event(socket, "ready")
    assert closed.value.code == UNKNOWN_SESSION


def test_nothing_is_done_before_hello(client: TestClient, session: Session) -> None:
    with client.websocket_connect(PATH) as socket:
        say(socket, type="sound", on=True)
        assert "hello" in next_event(socket, "error")["message"]
        say(socket, type="hello", session=session.id)
        next_event(socket, "ready")


def test_a_second_socket_takes_over(
    client: TestClient, session: Session, joined: WebSocketTestSession
) -> None:
    with client.websocket_connect(PATH) as second:
        say(second, type="hello", session=session.id)
        next_event(second, "ready")
        with pytest.raises(WebSocketDisconnect) as closed:
            next_event(joined, "ready")
        assert closed.value.code == TAKEN_OVER
        say(second, type="nonsense")
        next_event(second, "error")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x01",
        struct.pack("<BBHI", 1, 0, 0, 1) + b"odd",
        struct.pack("<BBHI", 1, 0, 0, 1) + b"\0" * 100_000,
        struct.pack("<BBHI", 9, 0, 0, 1) + b"\0\0",
        "{",
        '{"type": "launch"}',
        '{"type": "played", "turn": NaN, "samples": 0, "done": false}',
    ],
    ids=["empty", "short", "odd_bytes", "too_many_bytes", "kind", "no_json", "type", "nan"],
)
def test_odd_byte_counts_too_many_bytes_and_nan_are_refused_and_the_connection_survives(
    joined: WebSocketTestSession, bad: bytes | str
) -> None:
    joined.send_bytes(bad) if isinstance(bad, bytes) else joined.send_text(bad)
    assert next_event(joined, "error")["message"].startswith("Refused: ")
    speak(joined)
    next_event(joined, "turn")


def speak(socket: WebSocketTestSession, take: int = 1) -> None:
    say(socket, type="talk", take=take, on=True, mode="hold")
    for frame in [*microphone(take, 0.8, loud=True), *microphone(take, 0.3, loud=False)]:
        socket.send_bytes(frame)
    say(socket, type="talk", take=take, on=False, mode="hold")


def test_a_spoken_turn_comes_back_as_speech(joined: WebSocketTestSession, session: Session) -> None:
    say(joined, type="sound", on=True)
    speak(joined)
    turn = next_event(joined, "turn")["turn"]
    assert next_event(joined, "heard")["text"] == "Why is the sky blue?"
    assert next_event(joined, "speech") == {"type": "speech", "turn": turn, "rate_hz": RATE_HZ}
    pcm, end = b"", None
    while end is None:
        message = joined.receive()
        if message.get("bytes"):
            kind, _, _, number = struct.unpack_from("<BBHI", message["bytes"])
            assert (kind, number) == (2, turn)
            pcm += message["bytes"][8:]
            say(joined, type="played", turn=turn, samples=len(pcm) // 2 - 441, done=False)
        else:
            event = json.loads(message["text"])
            end = event if event["type"] == "speech_end" else None
    assert end["samples"] == len(pcm) // 2 > RATE_HZ
    samples = np.frombuffer(pcm, "<i2")
    assert np.count_nonzero(np.abs(samples) > 100) > 0.9 * len(samples)
    assert session.view().messages[-1]["content"] == REPLY


def test_metrics_are_reported_while_a_turn_runs_and_at_its_end(
    joined: WebSocketTestSession, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 5
    session.start_text("Why?")
    assert next_event(joined, "metrics")["running"] is True
    pipeline.hold_after = None
    pipeline.pace.set()
    metrics = next_event(joined, "metrics")
    while metrics["running"]:
        metrics = next_event(joined, "metrics")
    assert metrics["tokens"] == len(REPLY.split())
    assert metrics["tpot_ms"]["p99"] == pytest.approx(18.4)


def test_stop_over_the_socket_ends_the_turn(
    joined: WebSocketTestSession, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 4
    turn = session.start_text("Why?")
    until(session, lambda: session.view().messages[-1]["content"] == "The sky is blue.")
    say(joined, type="stop", turn=turn, samples=0)
    assert next_event(joined, "flush")["turn"] == turn
    assert next_event(joined, "done")["finish"] == "stopped"


def test_closing_the_socket_mid_reply_cancels_it(
    client: TestClient, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 4
    with client.websocket_connect(PATH) as socket:
        say(socket, type="hello", session=session.id)
        next_event(socket, "ready")
        session.start_text("Why?")
        until(session, lambda: session.view().messages[-1]["content"] == "The sky is blue.")
    assert session.wait_idle(30)
    assert session.view().messages[-1]["content"].endswith("*Stopped.*")


def test_a_flood_of_frames_is_survived(joined: WebSocketTestSession) -> None:
    say(joined, type="talk", take=1, on=True, mode="hold")
    for frame in microphone(1, 20.0, loud=False):
        joined.send_bytes(frame)
    say(joined, type="talk", take=1, on=False, mode="hold")
    assert "No speech" in next_event(joined, "error")["message"]


def test_a_detector_that_cannot_load_is_told_and_text_goes_on(
    client: TestClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no model")

    monkeypatch.setattr("ui.connection.Hearing", broken)
    with client.websocket_connect(PATH) as socket:
        say(socket, type="hello", session=session.id)
        speak(socket)
        assert "microphone" in next_event(socket, "error")["message"]
        session.start_text("Why?")
        assert next_event(socket, "done")["finish"] == "complete"
