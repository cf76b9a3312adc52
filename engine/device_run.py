"""One reply decoded by kernels that feed themselves: position, token and draw stay on the device.

The host launches a few steps ahead of what it has read and polls the ring in pinned memory; it
never synchronises the device. Steps launched past the end of a reply compute tokens nobody reads
and fill cache positions beyond its length, which hold anything by contract.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from engine.base import DraftCounts, FinishReason, Token, finish_reason
from engine.gpu import wait_for_word
from engine.kv_cache import KVCache
from engine.sampling import SamplingParams

if TYPE_CHECKING:
    from engine.triton_engine import TritonEngine

TIMEOUT_S = 60.0


class DeviceRun:
    """One reply of the engines `triton` and `graph`; see `engine.base.DecodeRun`.

    Times are the device's clock (%globaltimer), `start_ns` being the host's moment on that clock.
    Several runs of one engine may be iterated in turn: the engine's device state belongs to one
    at a time, and changes hands between steps.
    """

    def __init__(
        self, engine: TritonEngine, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.prefill_end_ns: int | None = None  # all but the token that the first step feeds
        self.launches = 0
        self.drafts: DraftCounts | None = None
        self._engine, self._cache, self._params = engine, cache, params
        self._prompt, self._pending = list(token_ids), token_ids[-1]  # the latter is fed next
        self._stop = threading.Event()
        self._under_way: deque[int] = deque()  # sequence numbers launched and not yet read
        self._read: deque[Token] = deque()  # and not yet yielded
        self._stamp = engine.new_stamp()
        self.start_ns = engine.clock_ns()

    def stop(self) -> None:
        self._stop.set()

    def __iter__(self) -> Iterator[Token]:
        engine, cache, params, count = self._engine, self._cache, self._params, 0
        if self.finish_reason is None and not self._stop.is_set():
            with engine.lock:
                engine.prefill(cache, self._prompt[:-1])
                engine.kernels.stamp(self._stamp)
        while self.finish_reason is None:
            if self._stop.is_set():
                self.finish_reason = "stopped"
                return
            with engine.lock:
                if not self._read:
                    if engine.hand_to(self):
                        self._bind()
                    self._launch_ahead(params.max_tokens - count)
                token = self._next()
            self.prefill_end_ns = int(self._stamp[0])  # written before the first step began
            cache.token_ids.append(self._pending)
            self._pending, count = token.id, count + 1
            self.finish_reason = finish_reason(token.id, count, cache, params)
            yield token

    def read_under_way(self) -> None:
        """Wait for the steps launched ahead: another run is about to take the device."""
        while self._under_way:
            self._read_step(self._under_way.popleft())

    def _bind(self) -> None:
        self._engine.kernels.bind(self._cache, self._pending, self._params)

    def _launch_ahead(self, tokens_left: int) -> None:
        limit = min(self._engine.steps_ahead, tokens_left, self._cache.free)
        while len(self._under_way) < limit:
            self._under_way.append(self._engine.launch(self._cache, self._params))

    def _next(self) -> Token:
        if not self._read:
            self._read_step(self._under_way.popleft())
        return self._read.popleft()

    def _read_step(self, sequence: int) -> None:
        """Wait for what step `sequence` published."""
        entry = self._engine.ring_entry(sequence)
        wait_for_word(entry[3:], sequence, TIMEOUT_S, f"token {sequence} of this engine")
        token_id, time_ns, _, _ = entry.tolist()
        logprob = float(entry.view(torch.float64)[2])
        self._read.append(Token(token_id, self._engine.moment_ns(time_ns), logprob))
        self.launches += self._engine.launches_per_step(self._params)
