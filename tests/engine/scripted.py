"""A decode run and an engine that say what they are told, for everything above engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from engine.base import DraftCounts, FinishReason, Token
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams


class ScriptedRun:
    """Yields `token_ids`, 1 ms apart, until stopped; `before(i)` runs ahead of token i."""

    def __init__(
        self, token_ids: Sequence[int], before: Callable[[int], None] = lambda index: None
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.start_ns = 0
        self.prefill_end_ns: int | None = 0
        self.launches = 0
        self.drafts: DraftCounts | None = None
        self.stopped = False
        self.yielded = 0
        self._token_ids, self._before = token_ids, before

    def stop(self) -> None:
        self.stopped = True

    def __iter__(self) -> Iterator[Token]:
        for index, token_id in enumerate(self._token_ids):
            if self.stopped:
                self.finish_reason = "stopped"
                return
            self._before(index)
            self.yielded += 1
            self.launches += 10
            if index + 1 == len(self._token_ids):
                self.finish_reason = "length"
            yield Token(token_id, (index + 1) * 1_000_000, -1.0)


class ScriptedEngine:
    """Answers each `decode` with the next of `replies`, keeping the cache's books."""

    name = "scripted"

    def __init__(self, model: Model, replies: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.weight_bytes_per_token = model.weight_bytes_per_token
        self.fed: list[list[int]] = []  # the token ids of each call
        self._replies = iter(replies)

    def prefill(self, cache: KVCache, token_ids: Sequence[int]) -> None:
        cache.require(len(token_ids))
        self.fed.append(list(token_ids))
        cache.token_ids.extend(token_ids)

    def decode(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> ScriptedRun:
        self.prefill(cache, token_ids)
        reply = next(self._replies)

        def feed_the_one_before(index: int) -> None:
            cache.token_ids.extend(reply[index - 1 : index] if index else [])

        return ScriptedRun(reply, feed_the_one_before)

    def close(self) -> None:
        """Nothing to release."""
