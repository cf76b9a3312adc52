"""One engine, one turn at a time: visitors wait in the order they came, and can see how long.

The wait is estimated by `ui.waits`. Whoever waits also keeps the time: a turn that holds the gate
past its limit while others wait is asked to give way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from engine.errors import UnpausedError
from ui.waits import Durations, HowFar, Progress

MAX_WAITING = 16
MAX_OF_ONE = 4  # places of one visitor, so that nobody fills the queue alone
TURN_LIMIT_S = 60.0  # of one turn, once others wait
_TOGETHER_S = 0.005  # between clauses that were let out at once
_LOOK_S = 5.0  # between two looks of a waiting ticket at the clock


class QueueFull(UnpausedError):
    """There is no place in the queue; `retry_s` is when there may be one."""

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class Gate:
    """A first-come, first-served lock whose queue is bounded and can be seen and left.

    `observe` is told how long each holder waited and then held, in seconds, as it leaves.
    """

    def __init__(
        self,
        max_waiting: int = MAX_WAITING,
        max_of_one: int = MAX_OF_ONE,
        turn_limit_s: float = TURN_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[float, float], None] = lambda waited_s, held_s: None,
    ) -> None:
        self._max_waiting, self._max_of_one = max_waiting, max_of_one
        self._turn_limit_s = turn_limit_s
        self._clock, self._observe = clock, observe
        self._changed = threading.Condition()
        self._queue: list[Ticket] = []  # the first one holds the gate
        self._durations = Durations()
        self.left = 0  # turns that are over

    def enter(self, visitor: str = "", kind: str = "") -> Ticket:
        """Take a place in the queue for `visitor`, a turn of `kind` ("text", "voice", ...).

        Raises `QueueFull` when all places, or all of this visitor's, are taken.
        """
        with self._changed:
            waiting = len(self._queue) - 1
            if waiting >= self._max_waiting:
                raise QueueFull(
                    f"{waiting} visitors are already waiting for the engine; try again in a "
                    "minute.",
                    self._expected(len(self._queue)) or 60.0,
                )
            own = sum(ticket.visitor == visitor for ticket in self._queue) if visitor else 0
            if own >= self._max_of_one:
                raise QueueFull(
                    f"You have {own} turns in the queue already; wait for one of them.",
                    self._expected(1) or 5.0,
                )
            ticket = Ticket(self, visitor, kind, self._clock())
            self._queue.append(ticket)
            if len(self._queue) == 1:
                ticket.held_at = ticket.entered_at
            return ticket

    @property
    def length(self) -> int:
        """Tickets in the queue, the holder's included."""
        return len(self._queue)

    def _position(self, ticket: Ticket) -> int | None:
        return self._queue.index(ticket) if ticket in self._queue else None

    def _wait(self, ticket: Ticket, seen: int | None, timeout_s: float) -> int | None:
        deadline = self._clock() + timeout_s
        while True:
            with self._changed:
                position = self._position(ticket)
                if position != seen:
                    return position
                overdue, patience_s = self._look(position)
                if overdue is None:
                    left = deadline - self._clock()
                    if left <= 0:
                        return position
                    self._changed.wait(min(left, patience_s))
            if overdue is not None:  # without the lock: whoever gives way has locks of its own
                overdue.give_way()

    def _look(self, position: int | None) -> tuple[Ticket | None, float]:
        """The holder, if it is to be asked to give way now; and when to look again, in seconds."""
        if not position or (held_at := self._queue[0].held_at) is None:
            return None, _LOOK_S
        holder, left = self._queue[0], held_at + self._turn_limit_s - self._clock()
        if left > 0 or holder.asked:
            return None, left if left > 0 else _LOOK_S
        holder.asked = True
        return holder, _LOOK_S

    def _leave(self, ticket: Ticket, holder_too: bool) -> None:
        with self._changed:
            if ticket not in self._queue or (self._queue[0] is ticket and not holder_too):
                return
            now, held_at = self._clock(), ticket.held_at
            self._queue.remove(ticket)
            self.left += 1
            if self._queue and self._queue[0].held_at is None:
                self._queue[0].held_at = now
            if held_at is not None:
                tokens, ticket.how_far = ticket.how_far().tokens, Progress  # and lets go of a reply
                self._durations.add(ticket.visitor, ticket.kind, now - held_at, tokens)
            self._changed.notify_all()
        if held_at is not None:
            self._observe(held_at - ticket.entered_at, now - held_at)

    def _voiced(self, ticket: Ticket, characters: int) -> None:
        with self._changed:
            now, before = self._clock(), ticket.voiced_at
            ticket.said, ticket.voiced_at = ticket.said + characters, now
            # The first clause's time is decoding's, too; several at once had been held back.
            if before is not None and now - before > _TOGETHER_S:
                self._durations.add_voiced(now - before, characters)

    def _expected(self, position: int) -> float | None:
        """Seconds until whoever stands at `position` holds the gate, as things look now."""
        if position == 0 or not self._queue:
            return 0.0
        holder, *ahead = self._queue[:position]
        whole = [self._durations.expected(ticket.visitor, ticket.kind) for ticket in ahead]
        if self._durations.expected("", "") is None:
            return None
        now, held_at = self._clock(), holder.held_at or 0.0
        remaining = self._durations.remaining(
            holder.visitor, holder.kind, now - held_at, holder.how_far(), holder.said,
            now - (holder.voiced_at or held_at),
        )  # fmt: skip
        return remaining + sum(seconds or 0.0 for seconds in whole)


class Ticket:
    """A place in a gate's queue. Every method is safe from any thread."""

    def __init__(self, gate: Gate, visitor: str, kind: str, entered_at: float) -> None:
        self.visitor, self.kind = visitor, kind
        self.entered_at = entered_at
        self.held_at: float | None = None  # when it got the gate
        self.give_way: Callable[[], None] = lambda: None
        """Called once, briefly and from a waiting thread, when the holder's time is up."""
        self.how_far: HowFar = Progress
        """Asked briefly, from any thread, of the holder."""
        self.said = 0  # characters that are speech
        self.voiced_at: float | None = None  # the last of them
        self.asked = False  # to give way
        self._gate = gate

    @property
    def waited(self) -> bool:
        """Whether somebody else held the gate when it came."""
        return self.held_at != self.entered_at

    def wait(self, seen: int | None = -1, timeout_s: float = _LOOK_S) -> int | None:
        """The place in the queue as soon as it differs from `seen`, or after `timeout_s`.

        0 holds the gate; None has left it.
        """
        return self._gate._wait(self, seen, timeout_s)

    def expected_s(self) -> float | None:
        """About how long until it holds the gate; None before the first turn has shown it."""
        with self._gate._changed:
            position = self._gate._position(self)
            return None if position is None else self._gate._expected(position)

    def voiced(self, characters: int) -> None:
        """So many more characters of the holder's reply are speech."""
        self._gate._voiced(self, characters)

    def cancel(self) -> None:
        """Stop waiting; a ticket that holds the gate keeps it."""
        self._gate._leave(self, holder_too=False)

    def leave(self) -> None:
        """Give up the place, or the gate itself. Idempotent."""
        self._gate._leave(self, holder_too=True)
