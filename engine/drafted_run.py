"""Speculative decoding steered from the host: draft, verify in one pass, keep what was right."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from engine.base import DecodeEngine, DraftCounts, FinishReason, Token, finish_reason
from engine.kv_cache import KVCache
from engine.sampling import SamplingParams, sample
from engine.speculation import Pace, look_up

Drawn = tuple[int, float]  # a token and its log-probability

_LOOK_AGAIN = 16  # passes after which a model that drafted badly is asked once more
_IN_STEP = 2  # tokens that a drafting model reads before each draft when it is asked every time


def draw_until_wrong(
    logits: torch.Tensor, cache: KVCache, draft: Sequence[int], params: SamplingParams
) -> list[Drawn]:
    """What a `Verifier` returns, from logits [len(draft) + 1, vocab] that follow `cache`'s list."""
    drawn: list[Drawn] = []
    context = list(cache.token_ids)
    for row, token_id in zip(logits, [*draft, None], strict=True):
        drawn.append(sample(row, params, len(context), context))
        if token_id is None or drawn[-1][0] != token_id:
            break
        context.append(token_id)
    return drawn


class Verifier(Protocol):
    """What the target of a drafted run must offer."""

    launches_per_step: int

    def verify(
        self, cache: KVCache, token_ids: Sequence[int], draft: Sequence[int], params: SamplingParams
    ) -> list[Drawn]:
        """Feed `token_ids` and then `draft` in one pass, and draw what follows.

        Returns what is drawn after the last of `token_ids` and after each token of the draft, up
        to the first that the draft has wrong: at least one. `cache` then lists `token_ids` and
        holds, unlisted, the keys and values of the draft. Only a prompt may take several passes.
        """
        ...


class Drafter(Protocol):
    """Where drafts come from."""

    free: bool  # costs nothing, so it is asked before every pass
    behind_ns: int  # of the last draft, what went into text that it had not been asked about

    def draft(self, context: Sequence[int], count: int, params: SamplingParams) -> list[int]:
        """At most `count` tokens that may follow `context`."""
        ...

    def close(self) -> None:
        """Release what it holds. Idempotent."""
        ...


class NgramDrafter:
    """What followed the same words before; see `engine.speculation.look_up`."""

    free = True
    behind_ns = 0

    def draft(self, context: Sequence[int], count: int, params: SamplingParams) -> list[int]:
        return look_up(context, count)

    def close(self) -> None:
        """Nothing to release."""


class ModelDrafter:
    """A smaller model with a cache of its own. It draws with the target's seed and positions, so
    that both draw the same token wherever they think alike."""

    free = False

    def __init__(self, engine: DecodeEngine) -> None:
        self._engine = engine
        self._cache = engine.model.new_cache()
        self.behind_ns = 0

    def draft(self, context: Sequence[int], count: int, params: SamplingParams) -> list[int]:
        room = self._cache.max_positions - len(context)
        if room < 1:
            return []
        # The last token is fed again: decoding begins from it.
        self._cache.truncate(min(self._cache.common_prefix(context), len(context) - 1))
        fresh = context[self._cache.length :]
        asked = replace(params, max_tokens=min(count, room), stop_ids=frozenset())
        run = self._engine.decode(self._cache, fresh, asked)
        draft = [token.id for token in run]
        behind = len(fresh) > _IN_STEP and run.prefill_end_ns is not None
        self.behind_ns = (run.prefill_end_ns or 0) - run.start_ns if behind else 0
        return draft

    def close(self) -> None:
        """Release the smaller model's engine."""
        self._engine.close()


class DraftedRun:
    """One reply, several tokens a pass where drafts hold; see `engine.base.DecodeRun`.

    Tokens of one pass share its moment: their text became known together.
    """

    def __init__(
        self,
        target: Verifier,
        drafter: Drafter,
        pace: Pace,
        widest: int,
        cache: KVCache,
        token_ids: Sequence[int],
        params: SamplingParams,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.start_ns = time.perf_counter_ns()
        self.prefill_end_ns: int | None = None
        self.launches = 0
        self.drafts: DraftCounts | None = DraftCounts()
        self._target, self._drafter, self._pace, self._widest = target, drafter, pace, widest
        self._cache, self._params = cache, params
        self._pending = list(token_ids)  # sampled or of the prompt, not yet in the cache
        self._unasked = 0  # passes since the drafter was asked
        self._behind_ns = 0  # of this pass, see `Drafter`
        self._stop = threading.Event()
        pace.new_reply()

    def stop(self) -> None:
        self._stop.set()

    def __iter__(self) -> Iterator[Token]:
        cache, params, count = self._cache, self._params, 0
        while self.finish_reason is None:
            if self._stop.is_set():
                self.finish_reason = "stopped"
                return
            tokens = self._pass(params.max_tokens - count)
            for index, token in enumerate(tokens):
                if index:  # the draft was right: its keys and values are in the cache already
                    cache.token_ids.append(tokens[index - 1].id)
                count += 1
                self._pending = [token.id]
                self.finish_reason = finish_reason(token.id, count, cache, params)
                yield token
                if self.finish_reason is not None or self._stop.is_set():
                    break

    def _pass(self, tokens_left: int) -> list[Token]:
        """Feed what is pending and a draft; the tokens that are certain now, at least one."""
        cache, first = self._cache, self.prefill_end_ns is None
        began_ns = time.perf_counter_ns()
        room = min(tokens_left - 1, cache.free - len(self._pending))
        self._behind_ns = 0
        draft, feed = ([], []) if first else self._draft(room)
        drawn = self._target.verify(cache, self._pending, feed, self._params)
        now_ns = time.perf_counter_ns()
        self.launches += self._target.launches_per_step
        if first:
            self.prefill_end_ns = now_ns
        else:
            self._account(draft, feed, [token_id for token_id, _ in drawn], now_ns - began_ns)
        return [Token(token_id, now_ns, logprob) for token_id, logprob in drawn]

    def _draft(self, room: int) -> tuple[list[int], list[int]]:
        """(what is drafted, the part of it to feed)."""
        room = min(room, self._widest - 1)
        if room < 1:
            return [], []
        context = [*self._cache.token_ids, *self._pending]
        if self._drafter.free:
            draft = self._drafter.draft(context, room, self._params)
            return draft, draft[: self._pace.width(len(draft)) - 1]
        self._unasked += 1
        count = self._pace.width(room) - 1
        if count == 0 and self._unasked >= _LOOK_AGAIN:
            count = 1
        if count:
            self._unasked = 0
        draft = self._drafter.draft(context, count, self._params) if count else []
        self._behind_ns = self._drafter.behind_ns if count else 0
        return draft, draft

    def _account(self, draft: list[int], feed: list[int], drawn: list[int], took_ns: int) -> None:
        accepted, rejected = len(drawn) - 1, len(drawn) <= len(feed)
        if self.drafts is not None:
            self.drafts.passes += 1
            self.drafts.drafted += len(feed)
            self.drafts.accepted += accepted
        self._pace.took(len(feed) + 1, took_ns - self._behind_ns)
        if draft and not feed:  # it was not fed, but what came says whether it was right
            accepted, rejected = (1, False) if drawn[0] == draft[0] else (0, True)
        self._pace.saw(accepted, rejected)
