"""Hands events to a listener in order, from whatever thread, with no lock of others held."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from audio.dialogue_events import Event

logger = logging.getLogger(__name__)


class Announcer:
    """`put` may be called under any lock; `deliver` afterwards, without it.

    Two threads never deliver at once: who comes second leaves its events to the first, so a
    listener may call back into what announces.
    """

    def __init__(self, listener: Callable[[Event], None]) -> None:
        self._listener = listener
        self._events: deque[Event] = deque()
        self._delivering = threading.Lock()

    def put(self, event: Event) -> None:
        self._events.append(event)

    def deliver(self) -> None:
        """Hand out what was put. A listener that fails loses that event only."""
        while self._events and self._delivering.acquire(blocking=False):
            try:
                while self._events:
                    self._hand_out(self._events.popleft())
            finally:
                self._delivering.release()

    def _hand_out(self, event: Event) -> None:
        try:
            self._listener(event)
        except Exception:
            logger.exception("a listener failed on %s", type(event).__name__)
