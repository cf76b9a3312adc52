"""What of the server can be reached, and how much may be sent: by sockets, not by trust."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.ui.api.conftest import Serve
from tests.ui.client import get, post
from ui.guard import MAX_MESSAGE_BYTES
from ui.page import Page

SECRETS = ("/etc/passwd", "app.py", "pyproject.toml", "ui/page.py")


@pytest.mark.parametrize(
    "path",
    [
        *(f"gradio_api/file={name}" for name in SECRETS),
        *(f"file={name}" for name in SECRETS),
        *(f"static/../../{name.lstrip('/')}" for name in SECRETS),
        *(f"static/%2e%2e/%2e%2e/{name.lstrip('/')}" for name in SECRETS),
        *(f"assets/..%2f..%2f{name}" for name in SECRETS),
        "static//etc/passwd",
        "svelte/../../app.py",
        "gradio_api/info",
        "gradio_api/openapi.json",
        "gradio_api/proxy=https://example.com",
        "gradio_api/stream/a/0/0/playlist.m3u8",
        "gradio_api/upload_progress?upload_id=x",
        "gradio_api/deep_link",
        "gradio_api/app_id",
        "gradio_api/token",
        "custom_component/a/b/c/d",
        "monitoring",
        "monitoring/summary",
        "docs",
        "redoc",
        "openapi.json",
        "v1/docs",
        "export/../../etc/passwd",
        "export/nobody/turn.json",
    ],
)  # fmt: skip
def test_nothing_but_the_page_can_be_read(page: Page, path: str) -> None:
    answer = raw(page, f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    status, body = answer.split(b"\r\n", 1)
    assert b" 404 " in status or b" 403 " in status, status
    assert b"root:" not in body and b"setuptools" not in body and b"import" not in body


@pytest.mark.parametrize(
    "path",
    ["upload", "run/predict", "api/predict", "call/predict", "reset", "component_server",
     "stream/x", "vibe-edit", "process_recording", "login"],
)  # fmt: skip
def test_gradios_other_endpoints_are_closed(page: Page, path: str) -> None:
    for at in (f"{page.url}gradio_api/{path}", f"{page.url}{path}"):
        assert post(at, json={"data": []}).status_code == 404


def test_the_page_and_what_it_loads_can_be_read(page: Page) -> None:
    html = get(page.url)
    assert html.status_code == 200 and "Unpaused" in html.text
    assert html.headers["x-content-type-options"] == "nosniff"
    assert get(f"{page.url}theme.css").status_code == 200
    assert get(f"{page.url}favicon.ico").status_code == 200


@pytest.mark.parametrize(
    ("path", "limit"),
    [("gradio_api/queue/join", 256 << 10), ("v1/chat/completions", 1 << 20),
     ("v1/audio/transcriptions", 25 << 20)],
)  # fmt: skip
def test_what_is_too_large_is_refused_before_it_is_sent(page: Page, path: str, limit: int) -> None:
    head = (
        f"POST /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {limit + 1}\r\n\r\n"
    )
    assert b" 413 " in raw(page, head).split(b"\r\n", 1)[0]


def test_what_does_not_say_its_size_is_cut_off(page: Page) -> None:
    sent = 0

    def endless() -> object:
        nonlocal sent
        yield b'{"model": "'
        for _ in range(400):
            sent += 1 << 14
            yield b"x" * (1 << 14)

    headers = {"content-type": "application/json"}
    answer = post(f"{page.url}v1/chat/completions", content=endless(), headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 413 and answer.json()["error"]["type"] == "invalid_request_error"
    assert sent <= 400 << 14


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "9" * 40])
def test_a_size_that_is_none(page: Page, length: str) -> None:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n"
    )
    assert raw(page, head).split(b" ")[1] in (b"400", b"413")


def test_a_socket_message_that_is_too_large_ends_the_socket(page: Page) -> None:
    url = page.url.replace("http", "ws") + "ws/voice"
    with connect(url, max_size=None) as joined:
        joined.send(b"\0" * (MAX_MESSAGE_BYTES + 1))
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                joined.recv(timeout=60)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


def test_a_flood_of_requests_is_answered_by_when_to_come_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.guard.REQUESTS_PER_S", 1 / 600)  # nothing comes back meanwhile
    monkeypatch.setattr("ui.guard.REQUESTS_AT_ONCE", 5)
    url = f"{serve().url}healthz"
    flooder = {"x-forwarded-for": "198.51.100.20"}
    codes = [get(url, headers=flooder).status_code for _ in range(7)]
    assert codes == [200] * 5 + [429] * 2
    assert 300 < int(get(url, headers=flooder).headers["retry-after"]) <= 600
    assert get(url, headers={"x-forwarded-for": "198.51.100.21"}).status_code == 200


def raw(page: Page, request: str) -> bytes:
    """The answer to exactly this."""
    where = urlsplit(page.url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=60) as made:
        made.sendall(request.encode())
        parts = []
        while part := made.recv(65536):
            parts.append(part)
            if b" 4" in parts[0][:14]:  # a refusal is short, and may come before all is sent
                break
        return b"".join(parts)
