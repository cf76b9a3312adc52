"""The resident threads of the CPU engine: started once, asleep between replies, gone in time."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence

import numpy as np
import torch

from engine import mailbox as mb
from engine.cpu_compile import resident_function
from engine.cpu_cores import pin
from engine.cpu_weights import CpuWeights
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.models.rope import rope_table
from engine.sampling import SamplingParams
from kernels import cpu_state as state
from kernels.cpu_pack import GROUP
from kernels.cpu_quantise import quantised_bytes
from kernels.cpu_speculation import PACE_NUMBERS
from kernels.stages import STAGES

STAGE_TIMEOUT_S = 20.0  # far beyond any stage; a suspended laptop is what can exceed it
_LEAVE_TIMEOUT_S = 5.0  # from the end of a run until every thread sleeps
_EXIT_TIMEOUT_S = 0.7  # for all threads together when the process ends
_ITEM_BITS = 20  # as in kernels/cpu_exchange.py
_ABORTED = 1 << 62
_AT_ZERO = (  # when a run begins
    mb.FED, mb.PREFILL_END_NS, mb.FAULT, mb.END, mb.PUBLISHED, mb.PASSES, mb.DRAFTED, mb.ACCEPTED,
    mb.DONE, mb.IDLE,
)  # fmt: skip


class ResidentThreads:
    """`threads` compiled loops on one model's weights, and the mailbox to speak with them.

    `cpus`: where to pin them, one each, or empty to leave that to the system.
    """

    def __init__(
        self, model: Model, weights: CpuWeights, threads: int, cpus: Sequence[int]
    ) -> None:
        self.count = threads
        self.positions = model.config.max_positions
        self.mailbox = mb.Mailbox(self.positions + 1)
        self.token_bell = mb.Bell()
        self.wake_bells = [mb.Bell() for _ in range(threads)]
        self.words = self.mailbox.words
        self.words[mb.CLOCK] = time.CLOCK_MONOTONIC
        self.words[mb.TIMEOUT_NS] = int(STAGE_TIMEOUT_S * 1e9)
        self.words[mb.TOKEN_FD] = self.token_bell.write_fd
        self.words[mb.IDLE] = threads
        self.shared = _shared(model, weights, self.mailbox)
        self._weights = weights  # keeps the memory behind the plan's addresses
        self._flagged = np.zeros(0, dtype=np.int64)  # stop_flags that are set
        own = [_own(model) for _ in range(threads)]
        bells = [bell.read_fd for bell in self.wake_bells]
        reside = resident_function((self.shared, own[0], bells[0]))

        def live(index: int) -> None:
            if cpus:
                pin(cpus[index])
            reside(self_shared, own[index], bells[index])

        self_shared = self.shared  # the threads must not keep `self` alive
        self._threads = [
            threading.Thread(target=live, args=(i,), name=f"persistent-cpu-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        self.close = weakref.finalize(
            self, _close, self.words, self.wake_bells, self.token_bell, self._threads
        )

    def start(
        self,
        cache: KVCache,
        token_ids: Sequence[int],
        params: SamplingParams | None,
        draft: Sequence[int] = (),
    ) -> int:
        """Ring the doorbell for a run and return its number. Without `params` nothing is sampled.

        With a `draft` (shorter than `state.CHUNK`) the run feeds it behind `token_ids`, samples
        up to the first token that it has wrong, and ends there.
        The caller has made sure that no run is under way. `cache` must not be freed before
        `wait_idle` has returned.
        """
        self.wait_idle()
        w, s = self.words, self.shared
        known, fed = cache.length, [*token_ids, *draft]
        s.context[known : known + len(fed)] = fed
        w[mb.PROMPT_TOKENS], w[mb.DRAFT_TOKENS], w[mb.START] = len(fed), len(draft), known
        if w[mb.WIDTH] > 1:
            s.context[:known] = cache.token_ids
        w[mb.CAPACITY], w[mb.MAX_TOKENS] = cache.max_positions, 0
        w[mb.KEYS], w[mb.VALUES] = cache.k.data_ptr(), cache.v.data_ptr()
        if params is not None:
            self._set_sampling(params, [*cache.token_ids, *token_ids])
        for word in _AT_ZERO:
            w[word] = 0
        w[mb.FINISH], w[mb.STATE] = mb.RUNNING, 1 << _ITEM_BITS
        w[mb.DOORBELL] += 1
        for bell in self.wake_bells:
            bell.ring()
        return int(w[mb.DOORBELL])

    def clock_ns(self) -> int:
        """This moment on the clock of every timestamp here."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def wait_idle(self) -> None:
        """Until every thread has left the last run; bounded."""
        deadline = time.monotonic() + _LEAVE_TIMEOUT_S
        while self.words[mb.IDLE] < self.count:
            if time.monotonic() > deadline:
                raise UnpausedError(
                    "the CPU engine's threads do not come to rest: other programs hold the cores; "
                    "close them, or restart with another engine"
                )
            time.sleep(20e-6)

    def raise_fault(self) -> None:
        """Raise `UnpausedError` with the place if the run has failed."""
        fault = int(self.words[mb.FAULT])
        if fault:
            stage, layer, token = mb.unpack_fault(fault)
            seconds = self.words[mb.TIMEOUT_NS] / 1e9
            raise UnpausedError(
                f"the CPU engine waited over {seconds:.3g} s in stage {STAGES[stage]!r}, "
                f"layer {layer}, token {token}: close programs that hold the cores and try again"
            )

    def _set_sampling(self, params: SamplingParams, context: Sequence[int]) -> None:
        w, s = self.words, self.shared
        numbers, vocab = self.mailbox.numbers, int(s.shape[state.VOCAB])
        w[mb.MAX_TOKENS] = min(params.max_tokens, self.positions + 1)
        w[mb.SEED] = np.uint64(params.seed).astype(np.int64)
        w[mb.TOP_K] = min(params.top_k, vocab)
        numbers[mb.TEMPERATURE] = 0.0 if params.greedy else params.temperature
        numbers[mb.TOP_P], numbers[mb.MIN_P] = params.top_p, params.min_p
        numbers[mb.REPETITION_PENALTY] = params.repetition_penalty
        if params.repetition_penalty != 1.0:
            s.seen[:] = 0
            s.seen[np.array(context, dtype=np.int64)] = 1
        s.stop_flags[self._flagged] = 0
        flags = [token for token in params.stop_ids if 0 <= token < vocab]
        self._flagged = np.array(flags, dtype=np.int64)
        s.stop_flags[self._flagged] = 1


def _close(
    words: np.ndarray, bells: list[mb.Bell], token_bell: mb.Bell, threads: list[threading.Thread]
) -> None:
    """Send every thread home, in the middle of a run too, and wait for them, bounded."""
    words[mb.SHUTDOWN] = 1
    words[mb.STATE] = _ABORTED
    for bell in bells:
        bell.ring()
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        return  # they may still read from the pipes and write into the arrays they hold
    for bell in (*bells, token_bell):
        bell.close()


def _shared(model: Model, weights: CpuWeights, box: mb.Mailbox) -> state.Shared:
    c = model.config
    cos, sin = (
        table[:, : c.head_dim // 2].contiguous().numpy()
        for table in rope_table(c, c.max_positions, torch.float32)
    )
    whole = -(-c.vocab // GROUP) * GROUP
    shape = [
        c.layers, c.hidden, c.intermediate, c.heads, c.kv_heads, c.head_dim, c.vocab,
        model.dtype == torch.bfloat16,
    ]  # fmt: skip

    def floats(*size: int) -> np.ndarray:
        # Written, not only promised: the first pass of each width would pay for the pages, and be
        # taken for dearer than it is.
        return np.full(size, 0.0, dtype=np.float32)

    return state.Shared(
        words=box.words,
        numbers=box.numbers,
        slots=box.slots,
        logprobs=box.logprobs,
        context=np.zeros(c.max_positions + 1, dtype=np.int64),
        under_way=np.zeros(4, dtype=np.int64),
        pace=np.zeros(PACE_NUMBERS),
        stop_flags=np.zeros(c.vocab, dtype=np.uint8),
        seen=np.zeros(c.vocab, dtype=np.uint8),
        shape=np.array(shape, dtype=np.int64),
        eps=np.array([c.rms_eps], dtype=np.float32),
        plan=weights.plan,
        norms=weights.norms,
        qkv_bias=weights.qkv_bias,
        qk_norms=weights.qk_norms,
        cos=cos,
        sin=sin,
        x=floats(state.CHUNK, c.hidden),
        qkv=floats(state.CHUNK, c.qkv_size),
        attended=floats(state.CHUNK, c.q_size),
        activated=floats(state.CHUNK, c.intermediate),
        logits=floats(state.CHUNK, whole),
        scores=floats(state.CHUNK, whole),
        partials=np.zeros((state.CHUNK, int(weights.plan[-2, state.ITEMS]), state.PARTIALS)),
        values=floats(whole),
        sorting=floats(whole),
        ids=np.zeros(whole, dtype=np.int64),
    )


def _own(model: Model) -> state.Own:
    c = model.config
    widest = state.CHUNK * max(c.hidden, c.intermediate, c.q_size)
    return state.Own(
        normed=np.zeros(widest, dtype=np.float32),
        quantised=np.zeros(quantised_bytes(widest), dtype=np.uint8),
        tile=np.zeros((2, state.CHUNK, GROUP), dtype=np.float32),
        heads=np.zeros((state.CHUNK, c.head_dim), dtype=np.float32),
        weights=np.zeros((state.CHUNK, c.max_positions + GROUP), dtype=np.float32),
        inverses=np.zeros(state.CHUNK, dtype=np.float32),
        random=np.zeros(4, dtype=np.uint64),
        byte=np.zeros(1, dtype=np.uint8),
    )
