"""A page's voice socket alone, in this process, for whoever plays a conversation into it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from voicebench.bench import BenchResult, run_benchmark
from voicebench.scenario import parse_scenario

from benchmarks.served import free_port
from engine.errors import UnpausedError
from ui.socket import PATH, VoiceSocket
from ui.visitors import Visitors

_START_S, _END_S = 60.0, 10.0


@contextmanager
def socket_of(visitors: Visitors) -> Iterator[str]:
    """Their socket on a free port; its address. Raises `UnpausedError` where it does not open."""
    app = Starlette(routes=[WebSocketRoute(PATH, VoiceSocket(visitors).handle)])
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + _START_S
        while not server.started:
            if time.monotonic() > deadline or not thread.is_alive():
                raise UnpausedError(f"the voice socket did not open on port {port}")
            time.sleep(0.02)
        yield f"ws://127.0.0.1:{port}{PATH}"
    finally:
        server.should_exit = True
        thread.join(_END_S)


def play(
    script: Mapping[str, Any], url: str, repeat: int = 1, folder: Path | None = None
) -> BenchResult:
    """voicebench's verdict on `script`, whose recordings lie in `folder`, played into `url`."""
    hello = {"type": "hello", "session": "new", "format": "pcm16"}
    options = {"url": url, "start_message": hello}
    scenario = parse_scenario(dict(script), base_dir=folder)
    return asyncio.run(run_benchmark(scenario, "websocket", options, repeat))
