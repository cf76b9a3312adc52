"""What the resident engines share on the host's side: one reply at a time, read from a mailbox.

A resident engine - threads on a CPU, a persistent kernel on a GPU - decodes a whole reply between
one doorbell and its end. The host only reads the ring, and may write the stop word; it never
synchronises the device.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from engine import mailbox as mb
from engine.base import DraftCounts, FinishReason, Token
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.sampling import SamplingParams

_PATIENCE_S = 30.0  # longer than any stage's own timeout: the engine must be gone


class Waitable(Protocol):
    """What a reader sleeps on between tokens."""

    def wait(self, timeout_s: float) -> bool:
        """Until there may be a token, at most `timeout_s`. Returns whether something came."""
        ...


class Resident(Protocol):
    """The side of an engine that a run speaks with."""

    words: Any  # int64 [mailbox.WORDS], see engine.mailbox
    mailbox: mb.Mailbox

    @property
    def token_bell(self) -> Waitable: ...

    def start(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams | None) -> int:
        """Start a run and return its number; `cache.token_ids` is left as it is."""
        ...

    def wait_idle(self) -> None:
        """Until nothing of the engine touches the last run's cache any more; bounded."""
        ...

    def raise_fault(self) -> None:
        """Raise `UnpausedError` with the place if the run has failed."""
        ...

    def clock_ns(self) -> int:
        """This moment on the engine's clock."""
        ...


class Ownership:
    """Who has a resident engine: one run at a time, and one that nobody holds any more has not."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Weak, so that a reply nobody holds any more is stopped and the engine is free again.
        self._owner: weakref.ref[ResidentRun] | None = None
        self._lock = threading.Lock()
        self.closed = False

    def take(self, run: ResidentRun) -> None:
        """Give the engine to `run`; refused while another reply has it."""
        with self._lock:
            self._check()
            self._owner = weakref.ref(run)

    def give_back(self, run: ResidentRun) -> None:
        """`run` is over and nothing works for it any more."""
        with self._lock:
            if self._owner is not None and self._owner() in (run, None):
                self._owner = None

    def check_free(self) -> None:
        """Raise `UnpausedError` unless a run could be taken up now."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        if self.closed:
            raise UnpausedError("this engine has been closed: build a new one")
        if self._owner is not None and self._owner() is not None:
            raise UnpausedError(f"{self._name} is decoding another reply: stop that one first")


class ResidentRun:
    """One reply of the resident engine; see `engine.base.DecodeRun`.

    Iterating it the first time rings the doorbell. The engine runs ahead of whoever iterates;
    the cache's list of tokens follows what has been yielded, so that a stop leaves the cache as
    if the engine had decoded no further. After `stop` has returned nothing of the engine
    touches the cache any more, unless another thread is iterating, which then sees to it.
    """

    def __init__(
        self,
        resident: Resident,
        ownership: Ownership,
        cache: KVCache,
        token_ids: Sequence[int],
        params: SamplingParams | None,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.start_ns = resident.clock_ns()
        self.prefill_end_ns: int | None = None
        self.launches = 0  # doorbells
        self.drafts = DraftCounts() if resident.words[mb.WIDTH] > 1 else None
        self._resident, self._ownership = resident, ownership
        self._cache, self._params = cache, params
        self._prompt = list(token_ids)
        self._number: int | None = None  # of the run, once the doorbell has rung
        self._ready: deque[Token] = deque()  # taken from the ring, not yet yielded
        self._taken = 0
        self._last: Token | None = None
        self._over = False
        self._stop = threading.Event()
        self._lock = threading.Lock()  # held while one thread waits for a token or settles

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        with self._lock:
            token = None if self._over else self._next()
        if token is None:
            raise StopIteration
        return token

    def stop(self) -> None:
        self._stop.set()
        if self._number is not None:
            self._resident.words[mb.STOP] = self._number
        if self._lock.acquire(blocking=False):  # else the thread that iterates settles it
            try:
                if not self._over:
                    self._settle("stopped")
            finally:
                self._lock.release()

    def __del__(self) -> None:
        if not self._over and self._number is not None:
            self.stop()

    def _next(self) -> Token | None:
        """The next token, or None when the run is over."""
        try:
            if self._number is None and not self._stop.is_set():
                self._start()
            if not self._stop.is_set():
                self._await_token()
        except BaseException:
            self._stop.set()
            self._settle("stopped")
            raise
        if self._stop.is_set():  # what the engine had ready is as if it had not been decoded
            self._ready.clear()
        if not self._ready:
            ended = self._resident.mailbox.ended(self._taken)
            self._settle("stopped" if self._stop.is_set() else mb.FINISH_REASONS.get(ended))
            return None
        return self._yield(self._ready.popleft())

    def _start(self) -> None:
        self._ownership.take(self)
        self._number = self._ring()
        self.launches += 1
        if self._stop.is_set():  # it came in between
            self._resident.words[mb.STOP] = self._number

    def _ring(self) -> int:
        """Start the run on the engine; its number."""
        return self._resident.start(self._cache, self._prompt, self._params)

    def _await_token(self) -> None:
        """Until a token is ready or the run has finished."""
        box, bell = self._resident.mailbox, self._resident.token_bell
        deadline = time.monotonic() + _PATIENCE_S
        while not self._ready:
            for token in box.tokens(self._taken):
                self._ready.append(token)
                self._taken += 1
            if self._ready or box.ended(self._taken) != mb.RUNNING:
                break
            self._resident.raise_fault()  # whoever would write the end may be what hangs
            if bell.wait(timeout_s=1.0):
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline:
                raise UnpausedError(
                    "the resident engine does not answer: restart, or use another one"
                )
        self._resident.raise_fault()

    def _yield(self, token: Token) -> Token:
        """Keep the cache's list in step: it holds all that was fed, all but the last token."""
        if self._last is None:
            self._cache.token_ids.extend(self._prompt)
            self.prefill_end_ns = int(self._resident.words[mb.PREFILL_END_NS])
        else:
            self._cache.token_ids.append(self._last.id)
        self._last = token
        self._count_drafts()
        ended = self._resident.mailbox.ended(self._taken)
        if ended != mb.RUNNING and not self._ready:
            self._settle(mb.FINISH_REASONS.get(ended))
        return token

    def _count_drafts(self) -> None:
        """Up to the tokens published so far."""
        words = self._resident.words
        if self.drafts is not None:
            self.drafts.passes = int(words[mb.PASSES])
            self.drafts.drafted = int(words[mb.DRAFTED])
            self.drafts.accepted = int(words[mb.ACCEPTED])

    def _settle(self, reason: FinishReason | None) -> None:
        """The run is over: let the engine come to rest and hand it back."""
        self._over = True
        if self._number is not None:
            words = self._resident.words
            if words[mb.FINISH] == mb.RUNNING:
                words[mb.STOP] = self._number
            self._resident.wait_idle()
            if self._last is None:  # a prefill, or stopped before the first token
                fed = int(words[mb.FED])
                self._cache.token_ids.extend(self._prompt[:fed])
        self.finish_reason = reason
        self._ownership.give_back(self)
