"""A request's work: it waits its turn at the gate, runs on a thread, and is read by the loop.

The loop watches the connection all the while: a client that has gone leaves the queue, or stops
the work, within `WATCH_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from engine.errors import UnpausedError
from ui.api.errors import APIError, as_api_error
from ui.services import Runtime
from ui.waits import progress_of

if TYPE_CHECKING:
    from engine.reply import ReplyStream

logger = logging.getLogger(__name__)

WATCH_S = 0.25
TELL_S = 5.0  # between two looks at the queue


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


@dataclass(frozen=True)
class Waiting:
    """So many turns come first, which takes about `wait_s`."""

    position: int
    wait_s: float | None


class Job(threading.Thread):
    """One request. `work(job)` runs with the gate held, and what it yields are the results.

    Raises `QueueFull` when made, if there is no place. Results are not bounded by a queue of
    their own: there are at most as many as the context has tokens, or a speech has sentences, and
    a slow reader must not keep the engine.
    """

    def __init__(
        self, runtime: Runtime, visitor: str, kind: str, work: Callable[[Job], Iterator[object]]
    ) -> None:
        super().__init__(name=f"api-{kind}", daemon=True)
        self.timed_out = False  # others waited, and its time was up
        self._runtime, self._kind, self._work = runtime, kind, work
        self._ticket = runtime.admit(visitor, kind)
        self._ticket.give_way = self._give_way
        self._loop, self._due = asyncio.get_running_loop(), asyncio.Event()
        self._lock = threading.Lock()
        self._items: deque[object] = deque()
        self._ended = False
        self._fault: APIError | None = None
        self._stopped = False
        self._stop_work: Callable[[], None] = lambda: None

    # For the work, on its thread

    @property
    def stopped(self) -> bool:
        return self._stopped

    def decodes(self, reply: ReplyStream) -> None:
        """`reply` is what the work is about to iterate."""
        self._ticket.how_far = lambda: progress_of(reply, spoken=False)
        self.stops_by(reply.stop)

    def stops_by(self, stop: Callable[[], None]) -> None:
        """How to stop what the work is about to do; safe from any thread."""
        self._stop_work = stop
        if self._stopped:
            stop()

    # For the loop

    async def results(self, request: Request) -> AsyncIterator[object]:
        """What the work yields, and `Waiting` before it begins.

        Raises `APIError`, or `ClientGone`. However the iteration ends, the work is stopped.
        """
        self.start()
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._due.wait(), WATCH_S)
                self._due.clear()
                items, ended = self._take()
                for item in items:
                    yield item
                if ended:
                    break
                if await request.is_disconnected():
                    raise ClientGone
            if self._fault is not None:
                raise self._fault
        finally:
            self.stop()

    def stop(self) -> None:
        """Leave the queue, or end the work. Safe from any thread, any time."""
        self._stopped = True
        self._ticket.cancel()
        self._stop_work()

    # Inside

    def _give_way(self) -> None:
        self.timed_out = True
        self._stop_work()

    def _take(self) -> tuple[list[object], bool]:
        with self._lock:
            items, ended = list(self._items), self._ended
            self._items.clear()
            return items, ended

    def _put(self, *items: object, ended: bool = False) -> None:
        with self._lock:
            quiet = not self._items and not self._ended
            self._items.extend(items)
            self._ended = self._ended or ended
        if quiet:  # else the loop has been woken and has not looked yet
            with contextlib.suppress(RuntimeError):  # a loop that closed has nobody to tell
                self._loop.call_soon_threadsafe(self._due.set)

    def run(self) -> None:
        finish = "failed"
        try:
            if self._wait_at_gate():
                for item in self._work(self):
                    self._put(item)
            finish = "stopped" if self._stopped else "complete"
        except (UnpausedError, APIError) as error:
            self._fault = as_api_error(error)
        except Exception as error:
            logger.exception("a request for %s failed", self._kind)
            self._fault = as_api_error(error)
        finally:
            self._ticket.leave()
            self._runtime.telemetry.turn(self._kind, finish)
            self._put(ended=True)

    def _wait_at_gate(self) -> bool:
        position: int | None = -1
        while not self._stopped:
            position = self._ticket.wait(position, TELL_S)
            if position == 0 or position is None:
                return position == 0
            self._put(Waiting(position, self._ticket.expected_s()))
        return False
