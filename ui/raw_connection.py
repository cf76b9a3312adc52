"""A socket that carries bare PCM16 both ways, for programs that know no frames of ours.

Such a client plays whatever comes, at once, and reports nothing. So the speech goes out in real
time, a little ahead, and what was played follows from the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

from audio.frames import STT_RATE_HZ, Resampler, from_pcm16, to_pcm16
from ui.connection import UNKNOWN_SESSION, Connection, fault, send
from ui.outbox import Outgoing
from ui.protocol import FRAME_HEADER, FRAME_MS, MAX_FRAME_SAMPLES, MicrophoneFrame, Talk
from ui.session import Session
from ui.visitors import Visitors

AHEAD_S = 0.04  # of speech with the client
MAX_MESSAGE_S = 1.0
TAKE = 1


class RawConnection(Connection):
    """Listens hands-free from the first sample on."""

    def __init__(
        self, websocket: WebSocket, session: Session, visitors: Visitors, rate_hz: int
    ) -> None:
        super().__init__(websocket, session, visitors)
        self._rate_hz = rate_hz
        self._resampler = Resampler(rate_hz, STT_RATE_HZ)
        self._player = RawPlayer(rate_hz)

    async def _receive(self) -> None:
        self._session.set_sound(True)
        self._inbox.put(Talk(TAKE, True, "free"))
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1000))
            data = message.get("bytes")
            if data is not None:
                self._take(data)

    def _take(self, data: bytes) -> None:
        if not data or len(data) % 2 or len(data) > 2 * MAX_MESSAGE_S * self._rate_hz:
            self._session.tell(fault(f"Refused: {len(data)} bytes are no piece of PCM16"))
            return
        samples = to_pcm16(self._resampler.push(from_pcm16(data)))
        for at in range(0, len(samples), MAX_FRAME_SAMPLES):
            pcm = samples[at : at + MAX_FRAME_SAMPLES].astype("<i2").tobytes()
            self._inbox.put(MicrophoneFrame(TAKE, 0, pcm))
        self._came.set()

    async def _send(self) -> None:
        while self._visitors.get(self._session.id) is self._session:
            for message in self._session.outgoing():
                for reply in self._player.take(message):
                    await send(self._websocket, reply)
            for pcm in self._player.due(self._loop.time()):
                await send(self._websocket, pcm)
            report = self._player.report(self._loop.time())
            if report is not None:
                self._session.played(**report)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), FRAME_MS / 1000)
            self._due.clear()
        await self.close(UNKNOWN_SESSION)


class RawPlayer:
    """What the client is playing, by the clock. Times are seconds of one clock."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._turn = 0
        self._source_hz = 0
        self._resampler = Resampler(rate_hz, rate_hz)
        self._waiting: deque[np.ndarray] = deque()  # int16 at the source's rate
        self._sent = 0  # samples at the source's rate
        self._until = 0.0  # when the client has played all that was sent
        self._began: float | None = None
        self._paused = self._ended = False

    def take(self, message: Outgoing) -> list[dict[str, Any]]:
        """One of the session's messages; what the client is told because of it."""
        if isinstance(message, bytes):
            *_, turn = FRAME_HEADER.unpack_from(message)
            if turn == self._turn:
                self._waiting.append(np.frombuffer(message, "<i2", offset=FRAME_HEADER.size))
            return []
        kind, turn = message["type"], message.get("turn")
        if kind == "speech":
            self._begin(message["turn"], message["rate_hz"])
        elif kind == "heard":
            return [{"type": "transcript", "role": "user", "text": message["text"], "final": True}]
        elif kind == "speech_end":
            self._ended = self._ended or turn == self._turn
        elif kind == "error":
            return [message]
        elif turn == self._turn and kind in ("flush", "pause"):
            self._paused = kind == "pause"
            if kind == "flush":
                self._waiting.clear()
            self._until = 0.0
            return [{"type": "clear"}]
        elif turn == self._turn and kind == "resume":
            self._paused = False
        return []

    def due(self, now: float) -> list[bytes]:
        """The speech to be sent now, at the client's rate."""
        pieces: list[bytes] = []
        while self._waiting and not self._paused and self._until < now + AHEAD_S:
            samples = self._waiting.popleft()
            self._sent += len(samples)
            self._began = now if self._began is None else self._began
            self._until = max(self._until, now) + len(samples) / self._source_hz
            last = self._ended and not self._waiting
            resampled = self._resampler.push(from_pcm16(samples), last)
            if len(resampled):
                pieces.append(to_pcm16(resampled).astype("<i2").tobytes())
        return pieces

    def report(self, now: float) -> dict[str, Any] | None:
        """What the client has played, as it would have reported it; None before anything."""
        if self._began is None:
            return None
        unplayed = max(0.0, self._until - now) * self._source_hz
        return {
            "turn": self._turn,
            "samples": max(0, self._sent - int(unplayed)),
            "done": False,
            "ago_ms": 1000 * (now - self._began),
        }

    def _begin(self, turn: int, rate_hz: int) -> None:
        self._turn, self._source_hz = turn, rate_hz
        self._resampler = Resampler(rate_hz, self._rate_hz)
        self._waiting.clear()
        self._sent, self._until, self._began = 0, 0.0, None
        self._paused = self._ended = False
