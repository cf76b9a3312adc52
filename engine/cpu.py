"""The resident engine on the CPU: compiled threads that stay, and a doorbell for each reply.

A reply costs one doorbell: prompt, layers, LM head, sampling and the decision to stop all happen
in native code (kernels/cpu.py) and only tokens come back. Against one Python call for each
operation that alone gains little on a CPU, some 6 % by a prototype's measurement; the speed comes
from fused stages, weights kept in their integer blocks, and native code.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

import torch

from engine import mailbox as mb
from engine.base import FinishReason, Token
from engine.eager import check_prompt
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams

_PATIENCE_S = 30.0  # longer than any stage's own timeout: the threads must be gone


class PersistentCpuEngine:
    """Decodes on resident threads, one per physical core unless `threads` allows fewer.

    Weights in Q4_0, Q4_1 and Q8_0 blocks are computed on as they are; all others as the model
    holds them, in bfloat16 or float32. One reply at a time.
    """

    name = "persistent-cpu"

    def __init__(self, model: Model, threads: int | None = None) -> None:
        # Imported here: numba takes half a second, and the registry only asks for this class.
        from engine.cpu_cores import physical_cores
        from engine.cpu_threads import ResidentThreads
        from engine.cpu_weights import cpu_weights

        _check_model(model)
        cores = physical_cores()
        count = max(1, min(threads or len(cores), len(cores)))
        weights = cpu_weights(model, count)
        self.model = model
        self.formats = weights.formats
        self.weight_bytes_per_token = weights.bytes_per_token
        # With a core to spare the system knows better which of them is free.
        self.resident = ResidentThreads(model, weights, count, cores if count == len(cores) else [])
        # Weak, so that a reply nobody holds any more is stopped and its threads are free again.
        self._owner: weakref.ref[CpuRun] | None = None
        self._lock = threading.Lock()

    @property
    def threads(self) -> int:
        """Resident threads."""
        return self.resident.count

    @staticmethod
    def unavailable() -> str | None:
        """Needs numba, a POSIX system, and the vector units of any x86 since 2013 or any ARM64."""
        if os.name != "posix":
            return "it needs Linux or macOS"
        if importlib.util.find_spec("numba") is None:
            return "numba is not installed: pip install numba"
        from llvmlite.binding import get_host_cpu_features, get_process_triple

        if get_process_triple().startswith(("aarch64", "arm64")):
            return None
        features = get_host_cpu_features()
        missing = [name for name in ("avx2", "fma", "f16c") if not features.get(name)]
        return f"this processor lacks {', '.join(missing)}" if missing else None

    def prefill(self, cache: KVCache, token_ids: Sequence[int]) -> None:
        cache.require(len(token_ids))
        if token_ids:
            check_prompt(self.model, cache, token_ids)
            run = self._run(cache, token_ids, None)
            for _ in run:
                raise AssertionError("a prefill samples nothing")

    def decode(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams) -> CpuRun:
        check_prompt(self.model, cache, token_ids)
        return self._run(cache, token_ids, params)

    def logits(self, cache: KVCache, token_ids: Sequence[int]) -> torch.Tensor:
        """Append `token_ids` one by one; float32 logits [len(token_ids), vocab], for tests."""
        cache.require(len(token_ids))
        rows, one = [], SamplingParams(max_tokens=1)
        for token_id in token_ids:
            list(self.decode(cache, [token_id], one))
            held = self.resident.shared.logits[: self.model.config.vocab]
            rows.append(torch.from_numpy(held.copy()))  # the next step overwrites it
        return torch.stack(rows)

    def close(self) -> None:
        """End the threads, in the middle of a reply too. Idempotent; under a second."""
        self.resident.close()

    def take(self, run: CpuRun) -> None:
        """Give the threads to `run`; refused while another reply has them."""
        with self._lock:
            self._check_free()
            self._owner = weakref.ref(run)

    def give_back(self, run: CpuRun) -> None:
        """`run` is over and no thread works for it any more."""
        with self._lock:
            if self._owner is not None and self._owner() in (run, None):
                self._owner = None

    def _run(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams | None
    ) -> CpuRun:
        _check_cache(self.model, cache)
        with self._lock:
            self._check_free()
        return CpuRun(self, cache, token_ids, params)

    def _check_free(self) -> None:
        if not self.resident.close.alive:
            raise UnpausedError("this engine has been closed: build a new one")
        if self._owner is not None and self._owner() is not None:
            raise UnpausedError("persistent-cpu is decoding another reply: stop that one first")


class CpuRun:
    """One reply of the resident engine; see `engine.base.DecodeRun`.

    Iterating it the first time rings the doorbell. The engine runs ahead of whoever iterates;
    the cache's list of tokens follows what has been yielded, so that a stop leaves the cache as
    if the engine had decoded no further. Between `stop` and its return no thread of the engine
    touches the cache any more, unless another thread is iterating, which then sees to it.
    """

    def __init__(
        self,
        engine: PersistentCpuEngine,
        cache: KVCache,
        token_ids: Sequence[int],
        params: SamplingParams | None,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.start_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self.prefill_end_ns: int | None = None
        self.launches = 0  # doorbells
        self._engine, self._resident = engine, engine.resident
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
        if not self._ready:
            finish = int(self._resident.words[mb.FINISH])
            self._settle("stopped" if self._stop.is_set() else mb.FINISH_REASONS.get(finish))
            return None
        return self._yield(self._ready.popleft())

    def _start(self) -> None:
        self._engine.take(self)
        self._number = self._resident.start(self._cache, self._prompt, self._params)
        self.launches += 1
        if self._stop.is_set():  # it came in between
            self._resident.words[mb.STOP] = self._number

    def _await_token(self) -> None:
        """Until a token is ready or the run has finished."""
        words, bell = self._resident.words, self._resident.token_bell
        deadline = time.monotonic() + _PATIENCE_S
        while not self._ready:
            finished = words[mb.FINISH] != mb.RUNNING  # read before the tokens: it comes with them
            for token in self._resident.mailbox.tokens(self._taken):
                self._ready.append(token)
                self._taken += 1
            if self._ready or finished:
                break
            if bell.wait(timeout_s=1.0):
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline:
                raise UnpausedError("the CPU engine does not answer: restart, or use another one")
        self._resident.raise_fault()

    def _yield(self, token: Token) -> Token:
        """Keep the cache's list in step: it holds all that was fed, all but the last token."""
        if self._last is None:
            self._cache.token_ids.extend(self._prompt)
            self.prefill_end_ns = int(self._resident.words[mb.PREFILL_END_NS])
        else:
            self._cache.token_ids.append(self._last.id)
        self._last = token
        words = self._resident.words
        finished = words[mb.FINISH] != mb.RUNNING and self._taken == words[mb.PUBLISHED]
        if finished and not self._ready:
            self._settle(mb.FINISH_REASONS[int(words[mb.FINISH])])
        return token

    def _settle(self, reason: FinishReason | None) -> None:
        """The run is over: let the threads come to rest and hand them back."""
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
        self._engine.give_back(self)


def _check_model(model: Model) -> None:
    if model.device.type != "cpu":
        raise UnpausedError(
            f"persistent-cpu decodes on the CPU, but the model is on {model.device}: "
            "choose another engine"
        )
    if model.dtype not in (torch.bfloat16, torch.float32):
        raise UnpausedError(f"persistent-cpu has no {model.dtype}: load the model in bfloat16")


def _check_cache(model: Model, cache: KVCache) -> None:
    c = model.config
    shape = (c.layers, c.kv_heads, cache.max_positions, c.head_dim)
    fits = cache.k.shape == cache.v.shape == shape and cache.max_positions <= c.max_positions
    plain = cache.k.is_contiguous() and cache.v.is_contiguous() and cache.k.device.type == "cpu"
    if not (fits and plain and cache.k.dtype == cache.v.dtype == model.dtype):
        raise UnpausedError("the KV cache was made for another model")
