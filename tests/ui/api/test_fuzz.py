"""Five hundred malformed messages to a running server: it answers in words and goes on."""

from __future__ import annotations

import gc
import itertools
import json
import random
import string
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from ui.page import Page
from ui.protocol import FRAME_HEADER

MESSAGES = 500
GROWTH_MB = 48.0  # of a leak there would be no end
KINDS: list[Any] = ["hello", "talk", "stop", "sound", "played", "launch", "", None, 7, [], {}]
# A single address would be told to slow down before it is through.
ADDRESSES = (f"2001:db8::{number:x}" for number in itertools.count())
FIELDS = ["type", "session", "take", "on", "mode", "turn", "samples", "done", "rate_hz", "ago_ms"]


def test_malformed_messages_break_nothing(page: Page) -> None:
    chance = random.Random(20)
    process = psutil.Process()
    sent = 0
    for round_ in range(5):
        for message in list(_messages(chance, MESSAGES // 5)):
            sent += 1
            _deliver(page, message, joined=chance.random() < 0.7)
        if round_ == 0:  # buffers and caches have their size by now
            gc.collect()
            before = process.memory_info().rss
    assert sent == MESSAGES
    gc.collect()
    assert (process.memory_info().rss - before) / 1e6 < GROWTH_MB
    assert page.visitors.runtime.gate.length == 0
    _answers(page)


def test_malformed_requests_break_nothing(page: Page) -> None:
    chance = random.Random(21)
    with httpx.Client(base_url=page.url, timeout=60) as client:
        for _ in range(MESSAGES // 5):
            path = chance.choice(
                ["gradio_api/queue/join", "gradio_api/cancel", "v1/chat/completions",
                 "v1/audio/speech", "v1/audio/transcriptions", "gradio_api/queue/data"]
            )  # fmt: skip
            kind = chance.choice(["application/json", "multipart/form-data; boundary=x", "", "x/y"])
            answer = client.post(path, content=_body(chance), headers={"content-type": kind})
            assert 400 <= answer.status_code < 500, (path, answer.status_code)
            page.visitors.runtime.allowances.clear()
    _answers(page)


def _answers(page: Page) -> None:
    """A visitor who means well is served."""
    session = page.visitors.open()
    with _connect(page) as socket:
        socket.send(json.dumps({"type": "hello", "session": session.id}))
        _await(socket, "ready")  # what happens before is told to no one
        session.start_text("Why?")
        _await(socket, "done")
    assert session.view().messages[-1]["content"].startswith("The sky")
    page.visitors.close(session.id)


def _await(socket: ClientConnection, kind: str) -> None:
    while True:
        message = socket.recv(timeout=60)
        if isinstance(message, str) and json.loads(message)["type"] == kind:
            return


def _connect(page: Page) -> ClientConnection:
    return connect(
        f"{page.url.replace('http', 'ws')}ws/voice",
        open_timeout=60,
        additional_headers={"X-Forwarded-For": next(ADDRESSES)},
    )


def _deliver(page: Page, message: str | bytes, joined: bool) -> None:
    """Send one message, before or after joining a session; then the server still listens."""
    session = page.visitors.open() if joined else None
    try:
        with _connect(page) as socket:
            if session is not None:
                socket.send(json.dumps({"type": "hello", "session": session.id}))
            socket.send(message)
            socket.send('{"type": "no such thing"}')
            while True:  # an answer in words: to the message, or to what came after it
                answer = socket.recv(timeout=60)
                if isinstance(answer, str) and json.loads(answer)["type"] == "error":
                    break
    except ConnectionClosed as closed:  # a hello of no session, or a message too large
        assert closed.rcvd is not None and closed.rcvd.code in (4404, 1009, 1007), closed
    finally:
        if session is not None:
            page.visitors.close(session.id)


def _messages(chance: random.Random, count: int) -> Iterator[str | bytes]:
    for _ in range(count):
        yield chance.choice(MAKERS)(chance)


def _frame(chance: random.Random) -> bytes:
    """A microphone frame with something wrong in it, or nothing."""
    head = FRAME_HEADER.pack(
        chance.choice([0, 1, 1, 1, 2, 255]),
        chance.choice([0, 0, 0, 9]),
        chance.randrange(1 << 16),
        chance.choice([0, 1, 2**31 - 1, 2**32 - 1]),
    )
    pcm = chance.randbytes(chance.choice([0, 1, 2, 639, 640, 3200, 3201, 9000]))
    return (head + pcm)[: chance.choice([None, None, 3, 8])]


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(200))


def _value(chance: random.Random) -> Any:
    return chance.choice(
        [None, True, -1, 0, 1, 2**31, 2**63, 1e308, 0.5, "", "x", "free", "\ud800", [1], {"a": 1}]
    )


def _object(chance: random.Random) -> str:
    fields: dict[str, Any] = {
        name: _value(chance) for name in chance.sample(FIELDS, chance.randrange(8))
    }
    fields["type"] = chance.choice(KINDS)
    return json.dumps(fields)


def _broken_json(chance: random.Random) -> str:
    text = _object(chance)
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(string.printable) + text[at + chance.randrange(3) :]


def _nested(chance: random.Random) -> str:
    depth = chance.choice([10, 1000, 4000])
    return chance.choice(["[", '{"a":']) * depth


def _large(chance: random.Random) -> str | bytes:
    size = chance.choice([4096, 4097, 65536, 65537, 200_000])
    if chance.random() < 0.5:
        return b"\1" * size
    return '{"type":"stop","turn":' + "1" * size + "}"


def _body(chance: random.Random) -> bytes:
    fields: dict[str, Any] = {
        "fn_index": chance.choice([-1, 0, 9, 10**9, None, "x"]),
        "session_hash": chance.choice([None, "", "x" * 1000, 5]),
        "data": chance.choice([None, [], [None, "x"], {"path": "/etc/passwd"}, "x"]),
        "model": chance.choice([None, "fake-model", 5]),
        "messages": chance.choice([None, [], [{}], "x", [{"role": "user", "content": None}]]),
        "input": chance.choice([None, "", 5, "x" * 9000]),
    }
    text = json.dumps(dict(chance.sample(sorted(fields.items()), chance.randrange(1, 5)))).encode()
    cut = chance.choice([None, None, 1, 5, len(text) - 1])
    return chance.choice([text[:cut], chance.randbytes(100), b"--x\r\n\r\n--x--"])


Maker = Callable[[random.Random], "str | bytes"]
MAKERS: list[Maker] = [_frame, _noise, _object, _broken_json, _nested, _large]
