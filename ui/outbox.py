"""What a session sends its socket: events at once, speech paced by its playback."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ui.playout import Playout
from ui.protocol import pack_speech

MAX_EVENTS = 512  # waiting for the socket; the oldest give way
STALL_S = 4.0  # playback that reports nothing for so long has stopped for good

Outgoing = dict[str, Any] | bytes


class Outbox:
    """Not thread-safe: its session's lock guards it.

    `wake` is the joined socket's, called when there is something to send; None without a socket.
    `count_dropped` is told how many messages of a queue ("events", "speech") a slow client lost.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None
        self.count_dropped: Callable[[str, int], None] = lambda queue, count: None
        self._events: deque[Outgoing] = deque(maxlen=MAX_EVENTS)
        self._sequence = 0
        self._progress_at = 0.0
        self._announced = 0  # the turn whose speech the client awaits the end of; 0 is none

    def join(self, wake: Callable[[], None]) -> None:
        """A socket took over: what was meant for the one before is gone."""
        self._events.clear()
        self._announced = 0
        self.wake = wake

    def put(self, event: dict[str, Any]) -> None:
        if self.wake is not None:
            if len(self._events) == MAX_EVENTS:
                self.count_dropped("events", 1)
            self._events.append(event)
            self.wake()

    def speech_began(self, playout: Playout, rate_hz: int) -> None:
        self._announced = playout.turn
        self.progressed()
        self.put({"type": "speech", "turn": playout.turn, "rate_hz": rate_hz})

    def progressed(self) -> None:
        """There is more to send, or more was played."""
        self._progress_at = time.monotonic()
        if self.wake is not None:
            self.wake()

    def take(self, playout: Playout | None) -> list[Outgoing]:
        """Everything that may be sent now, in order; `playout` is the latest turn's."""
        messages = list(self._events)
        self._events.clear()
        if playout is not None:
            messages += self._speech(playout)
        return messages

    def _speech(self, playout: Playout) -> list[Outgoing]:
        late = time.monotonic() - self._progress_at > STALL_S
        if playout.playing and not playout.paused and late:
            self.count_dropped("speech", playout.waiting)
            playout.stall()
        messages: list[Outgoing] = []
        for frame in playout.take():
            messages.append(pack_speech(playout.turn, self._sequence, frame))
            self._sequence += 1
        if self._announced == playout.turn and playout.all_sent:
            self._announced = 0
            messages.append({"type": "speech_end", "turn": playout.turn, "samples": playout.sent})
        return messages
