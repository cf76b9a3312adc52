"""A bound on the KV caches that many conversations hold together."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from engine.kv_cache import KVCache

MAX_CACHES = 8


class Holder(Protocol):
    """Whoever has a cache, as a conversation does."""

    cache: KVCache


class KVPool:
    """At most `limit` caches of full size; the one unused the longest gives way.

    A conversation whose cache was taken keeps a cache of one position, and prefills again when it
    comes back. Conversations are held weakly: one that is dropped takes its cache along. Caches
    move only in `use`, so whoever calls it must be the only one to decode.
    """

    def __init__(self, limit: int = MAX_CACHES) -> None:
        self._limit = max(1, limit)
        self._lock = threading.Lock()
        self._live: list[weakref.ref[Holder]] = []  # the longest unused first
        self._taken: weakref.WeakKeyDictionary[Holder, int] = weakref.WeakKeyDictionary()
        self.evictions = 0

    def use(self, holder: Holder) -> None:
        """Let `holder`, who is about to decode, have a cache of its full size."""
        with self._lock:
            others = [ref for ref in self._live if ref() not in (None, holder)]
            free: KVCache | None = None
            while len(others) >= self._limit:
                oldest = others.pop(0)()
                if oldest is not None:
                    free = self._take(oldest)
            positions = self._taken.pop(holder, None)
            if positions is not None:
                holder.cache = self._sized(free, holder.cache, positions)
            self._live = [*others, weakref.ref(holder)]

    def release(self, holder: Holder) -> None:
        """`holder`, who does not decode, will not come back soon: give up its cache now."""
        with self._lock:
            if any(ref() is holder for ref in self._live):
                self._live = [ref for ref in self._live if ref() not in (None, holder)]
                self._taken[holder] = holder.cache.max_positions
                holder.cache = holder.cache.resized(1)

    @property
    def held(self) -> int:
        """Caches of full size there are."""
        return sum(ref() is not None for ref in self._live)

    def _take(self, holder: Holder) -> KVCache:
        cache = holder.cache
        self._taken[holder] = cache.max_positions
        holder.cache = cache.resized(1)
        self.evictions += 1
        return cache

    def _sized(self, free: KVCache | None, like: KVCache, positions: int) -> KVCache:
        """A cache that holds nothing: the one just taken where its shape is right."""
        if free is not None and free.same_layout(like) and free.max_positions == positions:
            free.truncate(0)
            return free
        return like.resized(positions)
