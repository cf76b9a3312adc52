"""The sessions there are, by their unguessable ids."""

from __future__ import annotations

import secrets
import threading
import time

from engine.errors import UnpausedError
from ui.memory import heap_in_use, keep_what_is_loaded, tidy
from ui.services import Runtime
from ui.session import Session

MAX_SESSIONS = 32
IDLE_S = 30 * 60.0  # a session that nobody speaks to for so long is closed
SWEEP_S = 5.0


class Visitors:
    """Opens, finds and closes sessions; the longest unused gives way when there are too many."""

    def __init__(self, runtime: Runtime, max_sessions: int = MAX_SESSIONS) -> None:
        self.runtime = runtime
        self._max_sessions = max_sessions
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._closed = threading.Event()
        self._left = False  # somebody has, since the last collection
        runtime.telemetry.gauge("sessions", "Visitors' sessions", lambda: len(self._sessions))
        if heap_in_use() is not None:
            runtime.telemetry.gauge(
                "heap_bytes", "Memory in use of the C library's heaps", lambda: heap_in_use() or 0
            )

    def watch(self) -> None:
        """Close what is idle from now on, until `close_all`."""
        threading.Thread(target=self._watch, name="sweep", daemon=True).start()

    def _watch(self) -> None:
        settled, over = False, 0
        while not self._closed.wait(SWEEP_S):
            if not settled and self.runtime.ready:
                keep_what_is_loaded()
                settled = True
            self.sweep()
            gate = self.runtime.gate
            if (
                not self._sessions and gate.left > over
            ):  # programs have used the server, without one
                self._left = True
            over = gate.left
            if settled and self._left and gate.length == 0:
                self._left = False
                self.tidy()

    def tidy(self) -> None:
        """Give back what those who left have needed. What a session is made of refers to each
        other, and holds sound and a detector.
        """
        if self.runtime.pipeline.ready:
            self.runtime.pipeline().tidy()
        tidy()

    def sweep(self, idle_s: float = IDLE_S) -> int:
        """Close the sessions that have been idle for longer; returns how many."""
        since = time.monotonic() - idle_s
        with self._lock:
            idle = [s.id for s in self._sessions.values() if not s.active and s.used_at < since]
        for session_id in idle:
            self.close(session_id)
        return len(idle)

    def open(self) -> Session:
        """A new session. Raises `UnpausedError` when all the others are in use."""
        with self._lock:
            if len(self._sessions) >= self._max_sessions:
                self._evict()
            session = Session(self.runtime, secrets.token_urlsafe(24))
            self._sessions[session.id] = session
            return session

    def get(self, session_id: str) -> Session | None:
        with self._lock:
            return self._sessions.get(session_id)

    def close(self, session_id: str) -> None:
        """Forget a session and stop its turn. Idempotent."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is not None:
            session.forget()
            self._left = True

    def close_all(self) -> None:
        self._closed.set()
        for session_id in list(self._sessions):
            self.close(session_id)

    def _evict(self) -> None:
        idle = [session for session in self._sessions.values() if not session.active]
        if not idle:
            raise UnpausedError("Too many visitors at once; please try again in a few minutes.")
        oldest = min(idle, key=lambda session: session.used_at)
        del self._sessions[oldest.id]
        oldest.forget()
