"""A bounded queue between threads, whose writers can be hurried along but never lose the end."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """First in, first out, at most `bound` items. It ends when all `writers` have finished."""

    def __init__(self, bound: int, writers: int = 1) -> None:
        self._bound, self._writers = bound, writers
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._hurried = False

    def put(self, item: T) -> None:
        """Add `item`, waiting for room. After `hurry` there is as much again, then no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._hurried or len(self._items) < self._bound)
            if len(self._items) < 2 * self._bound:
                self._items.append(item)
                self._changed.notify_all()

    def get(self) -> T | None:
        """The next item, waiting for one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._writers == 0)
            if not self._items:
                return None
            self._changed.notify_all()
            return self._items.popleft()

    def finish(self) -> None:
        """One writer has written its last."""
        with self._changed:
            self._writers -= 1
            self._changed.notify_all()

    def hurry(self) -> None:
        """Let no writer wait any more: what they still write is little, or nobody reads it."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
