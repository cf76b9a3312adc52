"""The host's side of a persistent GPU kernel: mailbox in pinned memory, launch, and its end.

The host never synchronises the device while a reply is decoded: it polls pinned memory for
tokens and asks an event, without waiting, whether the kernel has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from engine import mailbox as mb
from engine.base import DecodeRun, check_prompt
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.gpu import check_gpu_cache, device_clock_ns, mark_seen, raise_device_error
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.resident import Ownership, ResidentRun
from engine.sampling import SamplingParams
from kernels.stages import STAGES

STAGE_TIMEOUT_S = 2.0  # of one wait inside the kernel; a step takes milliseconds
_LEAVE_TIMEOUT_S = 30.0  # from the end of a run until the kernel is gone
_POLL_S = 20e-6
Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


class PinnedBell:
    """Waits for a change of what the kernel has published, without any call to the device."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words
        self.reset()

    def reset(self) -> None:
        """A run begins: nothing is published."""
        self._last = (0, 0, 0)

    def wait(self, timeout_s: float) -> bool:
        """Until a token or the end has been published since the last call that returned True."""
        deadline, checked = time.monotonic() + timeout_s, 0.0
        while True:
            published, finish, fault = self._words[[mb.PUBLISHED, mb.FINISH, mb.FAULT]].tolist()
            found = (published, finish, fault)
            if found != self._last:
                self._last = found
                return True
            now = time.monotonic()
            if now > deadline:
                return False
            if now - checked > 0.1:
                checked = now
                raise_device_error("decoding a reply")
            time.sleep(_POLL_S)


class GpuResident:
    """One persistent kernel and its mailbox; see `engine.resident.Resident`.

    `launch(words, slots, run, numbers)` starts the kernel on the current stream and returns:
    the mailbox's words and slots in pinned memory, and the device's copies of words and numbers.
    `seen`: int8 [vocab] on the device, what a repetition penalty applies to.
    On a CPU, where kernels are interpreted for tests, the launch runs in a thread of its own.
    """

    def __init__(self, model: Model, launch: Launch, seen: torch.Tensor) -> None:
        self.on_gpu = model.device.type == "cuda"
        self.mailbox = mb.Mailbox(model.config.max_positions + 1, pinned=self.on_gpu)
        self.words = self.mailbox.words
        self.words[mb.TIMEOUT_NS] = int(STAGE_TIMEOUT_S * 1e9)
        self.bell = PinnedBell(self.words)
        self.run = torch.zeros(mb.WORDS, dtype=torch.int64, device=model.device)
        self.numbers = torch.zeros(mb.NUMBERS, dtype=torch.float64, device=model.device)
        self._launch, self._seen, self._vocab = launch, seen, model.config.vocab
        self._prompts = PromptEngine(model)
        self._stamp = torch.zeros(1, dtype=torch.int64, pin_memory=self.on_gpu)
        self._ended = torch.cuda.Event() if self.on_gpu else None
        self._thread: threading.Thread | None = None
        self._launched = False

    @property
    def token_bell(self) -> PinnedBell:
        return self.bell

    def prefill(self, cache: KVCache, token_ids: Sequence[int]) -> None:
        """Append keys and values of `token_ids` with the eager engine's layers."""
        self.wait_idle()
        self._prompts.prefill(cache, token_ids)

    def start(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams | None) -> int:
        """Prefill all but the last token, and launch the kernel on that one."""
        assert params is not None, "a prefill needs no kernel"
        self.wait_idle()
        before = cache.length
        if len(token_ids) > 1:
            self._prompts.prefill(cache, token_ids[:-1])
        self._set_run(cache, int(token_ids[-1]), params)
        cache.truncate(before)  # whoever reads the run keeps the list
        self.words[mb.FED] = len(token_ids) - 1
        return self._ring_doorbell()

    def _ring_doorbell(self) -> int:
        """Launch the kernel on the run that the mailbox holds; the run's number."""
        self.run.copy_(torch.from_numpy(self.words), non_blocking=True)
        self.numbers.copy_(torch.from_numpy(self.mailbox.numbers), non_blocking=True)
        self._launched = True
        if self._ended is None:
            self._thread = threading.Thread(target=self._start_kernel, daemon=True)
            self._thread.start()
        else:
            self._start_kernel()
            self._ended.record()
        return int(self.words[mb.DOORBELL])

    def wait_idle(self) -> None:
        """Until the last kernel has ended; bounded."""
        deadline = time.monotonic() + _LEAVE_TIMEOUT_S
        while self._launched and not self._has_ended():
            if time.monotonic() > deadline:
                raise UnpausedError("the persistent kernel does not end: restart the program")
            time.sleep(_POLL_S)
        self._launched = False

    def stop(self) -> None:
        """End whatever runs, and wait for it; bounded."""
        self.words[mb.STOP] = self.words[mb.DOORBELL]
        self.wait_idle()

    def raise_fault(self) -> None:
        """Raise `UnpausedError` with the place if a wait inside the kernel took too long."""
        if self.words[mb.FAULT]:
            self.wait_idle()  # who gives up later may tell of an earlier place
            fault = int(self.words[mb.FAULT])
            stage, layer, token = mb.unpack_fault(fault)
            seconds = self.words[mb.TIMEOUT_NS] / 1e9
            raise UnpausedError(
                f"the persistent kernel waited over {seconds:.3g} s in stage {STAGES[stage]!r}, "
                f"layer {layer}, token {token}, and ended: try again, or use another engine"
            )

    def clock_ns(self) -> int:
        """This moment on the device's clock, to within the latency of a small kernel."""
        if not self.on_gpu:
            return 0  # the interpreter has no clock: it numbers its tokens
        from kernels.draw_kernels import stamp_kernel

        return device_clock_ns(
            self._stamp,
            lambda: stamp_kernel[(1,)](self._stamp, DEVICE=True, num_warps=1),
            _LEAVE_TIMEOUT_S,
        )

    def _start_kernel(self) -> None:
        box, slots = torch.from_numpy(self.words), torch.from_numpy(self.mailbox.slots)
        self._launch(box, slots, self.run, self.numbers)

    def _has_ended(self) -> bool:
        if self._ended is None:
            return self._thread is None or not self._thread.is_alive()
        try:
            return self._ended.query()
        except RuntimeError:
            raise_device_error("decoding a reply")
            raise

    def _set_run(self, cache: KVCache, token: int, params: SamplingParams) -> None:
        w, numbers = self.words, self.mailbox.numbers
        for word in (mb.FAULT, mb.FINISH, mb.PUBLISHED, mb.PREFILL_END_NS):
            w[word] = 0
        self.bell.reset()
        w[mb.DOORBELL] += 1
        w[mb.NEXT_TOKEN], w[mb.START] = token, cache.length
        w[mb.CAPACITY] = cache.max_positions
        w[mb.KEYS], w[mb.VALUES] = cache.k.data_ptr(), cache.v.data_ptr()
        w[mb.MAX_TOKENS] = min(params.max_tokens, cache.max_positions)
        w[mb.SEED] = np.uint64(params.seed).astype(np.int64)
        w[mb.TOP_K] = params.top_k if params.top_k < self._vocab else 0
        self._set_stop_ids(params)
        numbers[mb.TEMPERATURE] = 0.0 if params.greedy else params.temperature
        numbers[mb.TOP_P], numbers[mb.MIN_P] = params.top_p, params.min_p
        numbers[mb.REPETITION_PENALTY] = params.repetition_penalty
        mark_seen(self._seen, cache, params)

    def _set_stop_ids(self, params: SamplingParams) -> None:
        ids = sorted(params.stop_ids)
        if len(ids) > mb.MAX_STOP_IDS:
            raise UnpausedError(
                f"a persistent kernel takes at most {mb.MAX_STOP_IDS} stop ids, not {len(ids)}"
            )
        self.words[mb.STOP_COUNT] = len(ids)
        self.words[mb.STOP_IDS : mb.STOP_IDS + len(ids)] = ids


class GpuResidentEngine:
    """What the persistent GPU engines have in common: all but the kernel. One reply at a time.

    A subclass sets `kernel`, whose `logits` is float32 [vocab] of the latest step, and `resident`.
    """

    name: str
    kernel: Any
    resident: GpuResident

    def __init__(self, model: Model) -> None:
        self.model = model
        self.weight_bytes_per_token = model.weight_bytes_per_token
        self._ownership = Ownership(self.name)

    def prefill(self, cache: KVCache, token_ids: Sequence[int]) -> None:
        cache.require(len(token_ids))
        check_gpu_cache(self.name, self.model, cache)
        if token_ids:
            check_prompt(self.model, cache, token_ids)
            self._ownership.check_free()
            self.resident.prefill(cache, token_ids)

    def decode(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams) -> DecodeRun:
        return self._run(self.resident, cache, token_ids, params)

    def logits(self, cache: KVCache, token_ids: Sequence[int]) -> torch.Tensor:
        """Append `token_ids` one by one; float32 logits [len(token_ids), vocab]."""
        cache.require(len(token_ids))
        rows, one = [], SamplingParams(max_tokens=1)
        for token_id in token_ids:
            list(self.decode(cache, [token_id], one))
            rows.append(self.kernel.logits.clone())  # the next step overwrites it
        return torch.stack(rows)

    def close(self) -> None:
        """End a reply that is under way and wait for the kernel, bounded. Idempotent."""
        self._ownership.closed = True
        self.resident.stop()

    def _run(
        self,
        resident: GpuResident,
        cache: KVCache,
        token_ids: Sequence[int],
        params: SamplingParams,
    ) -> ResidentRun:
        self._check(cache, token_ids, params)
        self._ownership.check_free()
        return ResidentRun(resident, self._ownership, cache, token_ids, params)

    def _check(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams) -> None:
        """Refuse, before any work, what cannot be decoded."""
        check_prompt(self.model, cache, token_ids)
        check_gpu_cache(self.name, self.model, cache)


class PromptEngine(EagerEngine):
    """The eager engine's layers for prompts; its decode steps, and their count, are not needed."""

    def _count_launches(self) -> int:
        return 0
