"""The voice socket, on the page's own port at /ws/voice.

One socket belongs to one session. Text messages are JSON objects with a "type"; binary messages
are audio frames. Every message about a turn carries the turn's number, every message about the
microphone the number of its take (one stretch of listening); both ends drop what is stale.

Binary frame: 8 bytes, little-endian (uint8 kind, uint8 0, uint16 sequence, uint32 number), then
int16 little-endian mono samples.
    client to server  kind 1, number = take, 16 kHz, 20 ms a frame (at most 100 ms)
    server to client  kind 2, number = turn, at the rate that "speech" named, 20 ms a frame or less

Client to server
    hello {session, format?, sample_rate?}
                                   first; anything else before it is refused. Session "new" is one
                                   that lasts as long as the socket, for programs without a page
    talk {take, on, mode}          listening begins or ends; mode "hold" or "free" (hands-free)
    stop {turn, samples}           end the turn, of whose speech so many samples were played
    sound {on}                     whether speech is wanted and can be played
    played {turn, samples, done, waited_ms?, ago_ms?}
                                   progress of playback, about every 50 ms; paces the server. The
                                   first sample was audible `ago_ms` ago, `waited_ms` after it came

Server to client
    ready {turn}                   the session is joined; its latest turn's number
    turn {turn, kind}              a turn began; kind "text" or "voice"
    state {turn, state, position?} waiting, loading, transcribing, thinking, answering or
                                   measuring
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

With format "pcm16" both directions carry bare PCM16 at `sample_rate` instead, and the
server listens hands-free at once, paces the speech to real time, and tells only `transcript {role,
text, final}` and `clear` (drop what was not played): the wire format of the benchmark "voicebench".

Close codes: 4403 another site's page, 4404 unknown session, 4409 joined by another socket.
A message that breaks these rules is answered by "error" and otherwise ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

from starlette.websockets import WebSocket, WebSocketDisconnect

from engine.errors import UnpausedError
from ui.connection import UNKNOWN_SESSION, Connection, fault, receive, send
from ui.protocol import NEW, Hello
from ui.raw_connection import RawConnection
from ui.session import Session
from ui.visitors import Visitors
from ui.words import sentence

PATH = "/ws/voice"
OTHER_ORIGIN, TAKEN_OVER = 4403, 4409
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
            hello = await asyncio.wait_for(self._greet(websocket), HELLO_S)
            if hello.session == NEW:
                await self._serve_a_stranger(websocket, hello)
                return
            session = self._visitors.get(hello.session)
            if session is None:
                await websocket.close(UNKNOWN_SESSION)
                return
            await self._serve(websocket, session, hello)

    async def _greet(self, websocket: WebSocket) -> Hello:
        while True:
            message = await receive(websocket)
            if isinstance(message, Hello):
                return message
            await send(websocket, fault("the first message is hello"))

    async def _serve_a_stranger(self, websocket: WebSocket, hello: Hello) -> None:
        """A program without a page gets a session that lasts as long as its socket."""
        try:
            session = self._visitors.open()
        except UnpausedError as error:
            await send(websocket, fault(sentence(str(error))))
            await websocket.close(UNKNOWN_SESSION)
            return
        try:
            await self._serve(websocket, session, hello)
        finally:
            self._visitors.close(session.id)

    async def _serve(self, websocket: WebSocket, session: Session, hello: Hello) -> None:
        before = self._joined.get(session.id)
        if before is not None:
            await before.close(TAKEN_OVER)
        connection = (
            Connection(websocket, session, self._visitors)
            if hello.rate_hz is None
            else RawConnection(websocket, session, self._visitors, hello.rate_hz)
        )
        self._joined[session.id] = connection
        try:
            await connection.run()
        finally:
            if self._joined.get(session.id) is connection:
                del self._joined[session.id]


def same_origin(websocket: WebSocket) -> bool:
    """Whether the page that opened the socket is this server's. Programs send no Origin."""
    origin = websocket.headers.get("origin")
    host = websocket.headers.get("host", "")
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()
