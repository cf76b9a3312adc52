"""The voice socket, on the page's own port at /ws/voice.

One socket belongs to one session. Text messages are JSON objects with a "type"; binary messages
are audio frames. Every message about a turn carries the turn's number, every message about the
microphone the number of its take (one stretch of listening); both ends drop what is stale.

Binary frame: 8 bytes, little-endian (uint8 kind, uint8 0, uint16 sequence, uint32 number), then
int16 little-endian mono samples.
    client to server  kind 1, number = take, 16 kHz, 20 ms a frame (at most 100 ms)
    server to client  kind 2, number = turn, at the rate that "speech" named, 20 ms a frame or less

Client to server
    hello {session}                first; anything else before it is refused
    talk {take, on, mode}          listening begins or ends; mode "hold" or "free" (hands-free)
    stop {turn, samples}           end the turn, of whose speech so many samples were played
    sound {on}                     whether speech is wanted and can be played
    played {turn, samples, done, waited_ms?, ago_ms?}
                                   progress of playback, about every 50 ms; paces the server. The
                                   first sample was audible `ago_ms` ago, `waited_ms` after it came

Server to client
    ready {turn}                   the session is joined; its latest turn's number
    turn {turn, kind}              a turn began; kind "text" or "voice"
    state {turn, state, position?} waiting, loading, transcribing, thinking or answering
    hearing {on}                   hands-free: speech began, or ended
    partial {turn, text}           what was heard so far, perhaps all: the turn has not begun
    taken_back {turn}              it has not, for the speaker went on
    heard {turn, text}             the transcript
    ignored {text, why}            it was no interruption: noise, back_channel or echo; or "stop",
                                   which was obeyed
    metrics {turn, running, latencies, ...}   `ReplyMetrics.as_dict()`, at most 25 a second;
                                   latencies {from, ms}: each new token's own
    speech {turn, rate_hz}         frames follow
    speech_end {turn, samples}     that was all of it
    duck {turn, on}                play quieter, or as loud as before
    pause {turn}                   silence at once; what was sent is kept
    resume {turn}                  go on from there, as loud as before
    flush {turn}                   silence at once; what was sent is dropped
    measured {turn, stages, total_ms, verdict}   the way to the first audible sample, complete
    done {turn, finish, stages, verdict, message}
                                   finish: complete, stopped, superseded (the speaker went on; all
                                   is part of the next turn), no_speech or failed
    cleared {}                     a new conversation
    dropped {frames}               microphone frames lost so far because they came too fast
    error {message}                in words, for the person

Close codes: 4403 another site's page, 4404 unknown session, 4409 joined by another socket.
A message that breaks these rules is answered by "error" and otherwise ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any
from urllib.parse import urlsplit

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

PATH = "/ws/voice"
OTHER_ORIGIN, UNKNOWN_SESSION, TAKEN_OVER = 4403, 4404, 4409
METRICS_S = 0.04  # between two reports of a running turn
IDLE_S = 1.0  # between two looks at a silent session
HELLO_S = 10.0  # for the first message


class VoiceSocket:
    """`handle` is the endpoint of the route, called once per connection."""

    def __init__(self, visitors: Visitors) -> None:
        self._visitors = visitors
        self._joined: dict[str, Connection] = {}  # by session; the event loop's alone

    async def handle(self, websocket: WebSocket) -> None:
        if not same_origin(websocket):
            await websocket.close(OTHER_ORIGIN)
            return
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect, TimeoutError, RuntimeError):
            session = await asyncio.wait_for(self._greet(websocket), HELLO_S)
            if session is None:
                await websocket.close(UNKNOWN_SESSION)
                return
            await self._serve(websocket, session)

    async def _greet(self, websocket: WebSocket) -> Session | None:
        while True:
            message = await _receive(websocket)
            if isinstance(message, Hello):
                return self._visitors.get(message.session)
            await _send(websocket, _error("the first message is hello"))

    async def _serve(self, websocket: WebSocket, session: Session) -> None:
        before = self._joined.get(session.id)
        if before is not None:
            await before.close(TAKEN_OVER)
        connection = Connection(websocket, session, self._visitors)
        self._joined[session.id] = connection
        try:
            await connection.run()
        finally:
            if self._joined.get(session.id) is connection:
                del self._joined[session.id]


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
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self, code: int) -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await self._websocket.close(code)

    def _wake(self) -> None:
        # Called from any thread; a loop that has closed has no socket left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._due.set)

    async def _receive(self) -> None:
        while True:
            message = await _receive(self._websocket)
            if isinstance(message, str):
                self._session.tell(_error(message))
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
                self._session.tell(_error(sentence(str(error))))
            except Exception:
                logger.exception("listening failed")
                self._session.tell(_error("The microphone's sound could not be used."))

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
                await _send(self._websocket, message)
            metrics = session.metrics(told) if now >= report_at else None
            news = metrics and (metrics["turn"], metrics["tokens"], metrics["running"])
            if metrics and news != sent:
                sent, report_at = news, now + METRICS_S
                told = (metrics["turn"], metrics["tokens"])
                await _send(self._websocket, {"type": "metrics", **metrics})
            if self._inbox.dropped != dropped:
                lost = self._inbox.dropped - dropped
                self._visitors.runtime.telemetry.dropped("microphone", lost)
                dropped = self._inbox.dropped
                await _send(self._websocket, {"type": "dropped", "frames": dropped})
            reporting = session.active or now < report_at
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), METRICS_S if reporting else IDLE_S)
            self._due.clear()


def same_origin(websocket: WebSocket) -> bool:
    """Whether the page that opened the socket is this server's. Programs send no Origin."""
    origin = websocket.headers.get("origin")
    host = websocket.headers.get("host", "")
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()


async def _receive(websocket: WebSocket) -> ClientMessage | MicrophoneFrame | str:
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


async def _send(websocket: WebSocket, message: dict[str, Any] | bytes) -> None:
    if isinstance(message, bytes):
        await websocket.send_bytes(message)
    else:
        await websocket.send_text(json.dumps(message, separators=(",", ":")))


def _error(message: str) -> dict[str, str]:
    return {"type": "error", "message": message}
