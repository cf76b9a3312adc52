"""A client that vanishes in the middle frees the engine at once."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect

from tests.ui.api.conftest import SlowEngine
from ui.page import Page

WITHIN_S = 1.0
MESSAGES = [{"role": "user", "content": "hello"}]


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> float:
    """Seconds until `condition` held."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "it did not happen in time"
        time.sleep(0.005)
    return time.monotonic() - began


def post(page: Page, path: str, body: dict[str, Any]) -> socket.socket:
    where, content = urlsplit(page.url), json.dumps(body).encode()
    made = socket.create_connection((where.hostname or "", where.port or 0), timeout=60)
    head = f"POST /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return made


def usually(vanish: Callable[[], float]) -> float:
    """The middle one of three times, since any one may be the machine's."""
    return sorted(vanish() for _ in range(3))[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("abruptly", [False, True])
def test_an_api_client_mid_reply(
    page: Page, slow: SlowEngine, stream: bool, abruptly: bool
) -> None:
    slow.pace.clear()  # the reply would last for ever
    gate = page.visitors.runtime.gate
    body = {"model": "fake-model", "messages": MESSAGES, "stream": stream}

    def vanish() -> float:
        made = post(page, "v1/chat/completions", body)
        until(lambda: not slow.idle.is_set())
        if abruptly:  # a reset rather than a farewell
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        made.close()
        return until(lambda: slow.idle.is_set() and gate.length == 0)

    assert usually(vanish) < WITHIN_S


def test_an_api_client_that_waits_in_the_queue(page: Page) -> None:
    gate = page.visitors.runtime.gate
    holder = gate.enter("someone")

    def vanish() -> float:
        made = post(page, "v1/chat/completions", {"model": "fake-model", "messages": MESSAGES})
        until(lambda: gate.length == 2)
        made.close()
        return until(lambda: gate.length == 1)

    assert usually(vanish) < WITHIN_S
    holder.leave()


def test_a_visitors_socket_mid_reply(page: Page) -> None:
    visitors = page.visitors
    pipeline: Any = visitors.runtime.pipeline()

    def vanish() -> float:
        pipeline.pace.set()
        session = visitors.open()
        with connect(page.url.replace("http", "ws") + "ws/voice") as joined:
            joined.send(json.dumps({"type": "hello", "session": session.id}))
            assert json.loads(joined.recv(timeout=60))["type"] == "ready"
            session.start_text("Why?")
            until(lambda: len(session.view().messages) == 2 and not pipeline.pace.is_set())
            assert visitors.runtime.gate.length == 1
            joined.socket.shutdown(socket.SHUT_RDWR)  # no closing handshake
            return until(lambda: visitors.runtime.gate.length == 0)

    pipeline.hold_after = 3
    try:
        assert usually(vanish) < WITHIN_S
    finally:
        pipeline.hold_after = None
        pipeline.pace.set()


def test_the_next_in_line_is_answered(page: Page, slow: SlowEngine) -> None:
    slow.pace.clear()
    body = {"model": "fake-model", "messages": MESSAGES, "max_tokens": 2}
    gone = post(page, "v1/chat/completions", {**body, "max_tokens": 200})
    until(lambda: not slow.idle.is_set())
    waiting = post(page, "v1/chat/completions", body)
    until(lambda: page.visitors.runtime.gate.length == 2)
    gone.close()
    until(lambda: page.visitors.runtime.gate.length == 1)
    slow.pace.set()
    assert b"200 OK" in waiting.recv(4096)
    waiting.close()


def test_a_long_reply_gives_way_to_those_who_wait(page: Page, slow: SlowEngine) -> None:
    gate = page.visitors.runtime.gate
    slow.pace.clear()
    long = post(page, "v1/chat/completions", {"model": "fake-model", "messages": MESSAGES})
    until(lambda: not slow.idle.is_set())
    limit, gate._turn_limit_s = gate._turn_limit_s, 0.05
    try:
        ticket = gate.enter("someone")
        assert ticket.wait(1, 60) == 0
        ticket.leave()
    finally:
        gate._turn_limit_s = limit
    answer = b""
    while b'"finish_reason"' not in answer:
        answer += long.recv(65536)
    assert b'"finish_reason":"length"' in answer
    long.close()


def test_a_client_that_does_not_read_does_not_keep_the_engine(page: Page, slow: SlowEngine) -> None:
    body = {"model": "fake-model", "messages": MESSAGES, "stream": True, "max_tokens": 400}
    deaf = post(page, "v1/chat/completions", body)
    until(lambda: not slow.idle.is_set())
    until(lambda: slow.idle.is_set() and page.visitors.runtime.gate.length == 0)
    deaf.close()
