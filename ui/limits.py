"""How much a visitor may ask for in a while: token buckets, a bounded number of them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable


class Allowance:
    """A token bucket: `burst` at once, `per_s` in the long run. Not thread-safe."""

    def __init__(
        self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._left, self._at = burst, clock()

    def take(self, cost: float = 1.0) -> float:
        """0 when `cost` was granted, else the seconds until it would be; nothing is taken then."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left >= cost:
            self._left -= cost
            return 0.0
        return (cost - self._left) / self._per_s

    def give_back(self, cost: float = 1.0) -> None:
        """What was taken turned out not to count."""
        self._left = min(self._burst, self._left + cost)


class Allowances:
    """One allowance for each of the last `most` visitors. Safe from any thread.

    Whoever is forgotten begins with a full one: a flood of made-up visitors costs them nothing but
    bounds the memory, and the queue behind is bounded by itself.
    """

    def __init__(
        self,
        per_s: float,
        burst: float,
        most: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_s, self._burst, self._most, self._clock = per_s, burst, most, clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Allowance] = OrderedDict()

    def take(self, visitor: str, cost: float = 1.0) -> float:
        """As `Allowance.take`, of `visitor`'s."""
        with self._lock:
            allowance = self._known.get(visitor)
            if allowance is None:
                allowance = self._known[visitor] = Allowance(self._per_s, self._burst, self._clock)
                if len(self._known) > self._most:
                    self._known.popitem(last=False)
            self._known.move_to_end(visitor)
            return allowance.take(cost)

    def give_back(self, visitor: str, cost: float = 1.0) -> None:
        """As `Allowance.give_back`, to `visitor`'s."""
        with self._lock:
            allowance = self._known.get(visitor)
            if allowance is not None:
                allowance.give_back(cost)

    def clear(self) -> None:
        """Forget everybody."""
        with self._lock:
            self._known.clear()
