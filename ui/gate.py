"""One engine, one turn at a time: visitors wait in the order they came."""

from __future__ import annotations

import threading

from engine.errors import UnpausedError

MAX_WAITING = 16


class Gate:
    """A first-come, first-served lock whose queue is bounded and can be seen and left."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._queue: list[Ticket] = []  # the first one holds the gate

    def enter(self) -> Ticket:
        """Take a place in the queue. Raises `UnpausedError` when it is full."""
        with self._changed:
            waiting = len(self._queue) - 1
            if waiting >= self._max_waiting:
                raise UnpausedError(
                    f"{waiting} visitors are already waiting for the engine; try again in a minute."
                )
            ticket = Ticket(self)
            self._queue.append(ticket)
            return ticket

    def _position(self, ticket: Ticket) -> int | None:
        return self._queue.index(ticket) if ticket in self._queue else None

    def _wait(self, ticket: Ticket, seen: int | None, timeout_s: float) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._position(ticket) != seen, timeout_s)
            return self._position(ticket)

    def _leave(self, ticket: Ticket, holder_too: bool) -> None:
        with self._changed:
            if ticket in self._queue and (holder_too or self._queue[0] is not ticket):
                self._queue.remove(ticket)
                self._changed.notify_all()


class Ticket:
    """A place in a gate's queue. Every method is safe from any thread."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def wait(self, seen: int | None = -1, timeout_s: float = 5.0) -> int | None:
        """The place in the queue as soon as it differs from `seen`, or after `timeout_s`.

        0 holds the gate; None has left it.
        """
        return self._gate._wait(self, seen, timeout_s)

    def cancel(self) -> None:
        """Stop waiting; a ticket that holds the gate keeps it."""
        self._gate._leave(self, holder_too=False)

    def leave(self) -> None:
        """Give up the place, or the gate itself. Idempotent."""
        self._gate._leave(self, holder_too=True)
