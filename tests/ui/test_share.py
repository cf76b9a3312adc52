"""The public link: when it cannot be had, and over a stand-in for Gradio's tunnel."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import gradio.networking
import gradio.tunneling
import httpx
import pytest
from gradio.exceptions import ChecksumMismatchError
from websockets.sync.client import connect
from websockets.typing import Origin

from benchmarks.served import free_port
from tests.ui.client import get
from tests.ui.fakes import FakePipeline, services
from ui import share
from ui.access import Access
from ui.page import Page, start

# What Gradio starts is a program that connects out; this one only forwards from a port of its own,
# as a public host would be reached, and says so in frpc's words.
TUNNEL = """#!{python}
import asyncio, sys

async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def forward(reader, writer):
    there = await asyncio.open_connection(host, port)
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer), return_exceptions=True)

async def main():
    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    public = server.sockets[0].getsockname()[1]
    print("start proxy success: http://localhost:%d" % public, flush=True)
    await server.serve_forever()

options = dict(zip(sys.argv[2::1], sys.argv[3::1]))
host, port = options["-i"], int(options["-l"])
asyncio.run(main())
"""


@pytest.fixture
def access() -> Access:
    return Access(share=True)


@pytest.fixture
def page(access: Access) -> Iterator[Page]:
    running = start(services(FakePipeline()), port=free_port(), access=access)
    yield running
    running.close()


@pytest.fixture
def tunnel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    program = tmp_path / "frpc"
    program.write_text(TUNNEL.replace("{python}", sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(gradio.tunneling, "BINARY_PATH", str(program))
    monkeypatch.setattr(gradio.networking, "GRADIO_SHARE_SERVER_ADDRESS", "share.test:7000")
    return program


def port_of(page: Page) -> int:
    return int(page.url.rstrip("/").rpartition(":")[2])


def test_page_socket_and_api_go_through_the_tunnel(
    page: Page, access: Access, tunnel: Path
) -> None:
    told = share.open_link(access, "127.0.0.1", port_of(page))
    assert access.link.startswith("http://localhost:") and access.link in told
    assert "no password" in told and "--auth" in told and access.open_to_all
    link = access.link
    assert "Unpaused" in get(link).text
    assert get(f"{link}/v1/models").json()["data"]
    session = page.visitors.open()
    with connect(f"{link.replace('http', 'ws')}/ws/voice", origin=Origin(link)) as joined:
        joined.send(json.dumps({"type": "hello", "session": session.id}))
        assert json.loads(joined.recv(timeout=60))["type"] == "ready"
        session.start_text("Why?")
        kinds = set()
        while "done" not in kinds:
            kinds.add(json.loads(joined.recv(timeout=60))["type"])
    share.close_link()
    assert not gradio.tunneling.CURRENT_TUNNELS


def test_the_link_counts_as_our_own_also_where_the_tunnel_renames_the_host(
    page: Page, access: Access
) -> None:
    access.link = "https://abc.share.test"
    headers = {"origin": access.link}  # while Host stays the local address
    assert get(page.url, headers=headers).status_code == 200
    with connect(f"{page.url.replace('http', 'ws')}ws/voice", origin=Origin(access.link)):
        pass
    assert get(page.url, headers={"origin": "https://xyz.share.test"}).status_code == 403
    by_link = {"host": "abc.share.test"}
    assert get(f"{page.url}metrics", headers=by_link).status_code == 403


def test_with_a_password_there_is_no_warning(tunnel: Path) -> None:
    access = Access(share=True, auth="ann:secret")
    running = start(services(FakePipeline()), port=free_port(), access=access)
    try:
        told = share.open_link(access, "127.0.0.1", port_of(running))
        assert access.link in told and "no password" not in told and not access.open_to_all
        assert get(access.link).status_code == 401
        assert get(access.link, auth=("ann", "secret")).status_code == 200
    finally:
        running.close()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (RuntimeError("Could not get share link"), "share server cannot be reached"),
        (httpx.ConnectError("no route"), "tunnel program cannot be fetched"),
        (ChecksumMismatchError(), "not the one that Gradio published"),
        (ValueError("login to server failed\nlog\nlog"), "refused the tunnel"),
        (PermissionError(13, "Permission denied", "/x"), "Permission denied"),
    ],
)
def test_without_a_tunnel_one_line_says_why_and_the_page_goes_on(
    page: Page, access: Access, monkeypatch: pytest.MonkeyPatch, fault: Exception, said: str
) -> None:
    def fails(*_: object) -> str:
        raise fault

    monkeypatch.setattr(gradio.networking, "setup_tunnel", fails)
    told = share.open_link(access, "127.0.0.1", port_of(page))
    assert told.startswith("No public link: ") and said in told and "\n" not in told
    assert not access.link and not access.open_to_all
    assert get(page.url).status_code == 200


def test_a_tunnel_that_says_nothing_is_given_up(page: Page, access: Access, tunnel: Path) -> None:
    tunnel.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    told = share.open_link(access, "127.0.0.1", port_of(page), timeout_s=1.0)
    assert told.startswith("No public link: no answer within 1 s")
    assert not gradio.tunneling.CURRENT_TUNNELS
