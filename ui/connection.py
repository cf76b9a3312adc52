"""One socket joined to its session: what comes in, what is listened to, what goes out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from engine.errors import UnpausedError
from ui.hearing import Hearing, Inbox
from ui.protocol import (
    ClientMessage,
    Hello,
    MicrophoneFrame,
    Played,
    ProtocolError,
    Sound,
    Stop,
    parse_frame,
    parse_message,
)
from ui.session import Session
from ui.visitors import Visitors
from ui.words import sentence

logger = logging.getLogger(__name__)

UNKNOWN_SESSION = 4404
METRICS_S = 0.04  # between two reports of a running turn
IDLE_S = 1.0  # between two looks at a silent session


class Connection:
    """One socket joined to its session: three tasks that receive, listen and send."""

    def __init__(self, websocket: WebSocket, session: Session, visitors: Visitors) -> None:
        self._websocket, self._session = websocket, session
        self._visitors = visitors
        self._inbox = Inbox()
        self._came, self._due = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Serve until the client leaves or another connection takes over."""
        self._session.attach(self._wake)
        tasks = [asyncio.create_task(work()) for work in (self._receive, self._listen, self._send)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._session.detach(self._wake)  # first: what follows may itself be cancelled
            for task in tasks:
                task.cancel()
            # Not `gather`: cancelled here, it would raise one of the tasks' cancellations, which
            # whoever cancelled us does not know for its own.
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # seen

    async def close(self, code: int) -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await self._websocket.close(code)

    def _wake(self) -> None:
        # Called from any thread; a loop that has closed has no socket left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._due.set)

    async def _receive(self) -> None:
        while True:
            message = await receive(self._websocket)
            if isinstance(message, str):
                self._session.tell(fault(message))
            elif isinstance(message, Stop):
                self._session.stop(message.turn, message.samples)
            elif isinstance(message, Sound):
                self._session.set_sound(message.on)
            elif isinstance(message, Played):
                self._session.played(
                    message.turn, message.samples, message.done, message.waited_ms, message.ago_ms
                )
            elif not isinstance(message, Hello):
                self._inbox.put(message)
                self._came.set()

    async def _listen(self) -> None:
        hearing: Hearing | None = None
        while True:
            await self._came.wait()
            self._came.clear()
            items = self._inbox.take()
            try:
                if hearing is None:
                    hearing = Hearing(self._session.dialogue)
                await asyncio.to_thread(hearing.feed, items)
            except UnpausedError as error:
                self._session.tell(fault(sentence(str(error))))
            except Exception:
                logger.exception("listening failed")
                self._session.tell(fault("The microphone's sound could not be used."))

    async def _send(self) -> None:
        sent: object = None  # what the last metrics were about
        told = (0, 0)  # the turn and how many of its tokens they told of
        dropped = 0
        report_at = 0.0
        while True:
            session, now = self._session, self._loop.time()
            if self._visitors.get(session.id) is not session:  # closed, as after a long silence
                await self.close(UNKNOWN_SESSION)
                return
            for message in session.outgoing():
                await send(self._websocket, message)
            metrics = session.metrics(told) if now >= report_at else None
            news = metrics and (metrics["turn"], metrics["tokens"], metrics["running"])
            if metrics and news != sent:
                sent, report_at = news, now + METRICS_S
                told = (metrics["turn"], metrics["tokens"])
                await send(self._websocket, {"type": "metrics", **metrics})
            if self._inbox.dropped != dropped:
                lost = self._inbox.dropped - dropped
                self._visitors.runtime.telemetry.dropped("microphone", lost)
                dropped = self._inbox.dropped
                await send(self._websocket, {"type": "dropped", "frames": dropped})
            reporting = session.active or now < report_at
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), METRICS_S if reporting else IDLE_S)
            self._due.clear()


async def receive(websocket: WebSocket) -> ClientMessage | MicrophoneFrame | str:
    """The next message, parsed; a text that says why when it breaks the rules."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    try:
        data = message.get("bytes")
        if data is not None:
            return parse_frame(data)
        return parse_message(message.get("text") or "")
    except ProtocolError as error:
        return f"Refused: {error}"


async def send(websocket: WebSocket, message: dict[str, Any] | bytes) -> None:
    if isinstance(message, bytes):
        await websocket.send_bytes(message)
    else:
        await websocket.send_text(json.dumps(message, separators=(",", ":")))


def fault(message: str) -> dict[str, str]:
    return {"type": "error", "message": message}
