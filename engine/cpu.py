"""The resident engine on the CPU: compiled threads that stay, and a doorbell for each reply.

A reply costs one doorbell: prompt, layers, LM head, sampling and the decision to stop all happen
in native code (kernels/cpu.py) and only tokens come back. Against one Python call for each
operation that alone gains little on a CPU, some 6 % by a prototype's measurement; the speed comes
from fused stages, weights kept in their integer blocks, and native code.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from engine import mailbox as mb
from engine.anatomy import StageProfile
from engine.base import check_prompt
from engine.drafted_run import DraftedRun, Drawn, ModelDrafter
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.resident import Ownership, ResidentRun
from engine.sampling import SamplingParams
from engine.speculation import Pace, Speculation

if TYPE_CHECKING:
    from engine.cpu_threads import ResidentThreads


class PersistentCpuEngine:
    """Decodes on resident threads, one per physical core unless `threads` allows fewer.

    Weights in Q4_0, Q4_1 and Q8_0 blocks are computed on as they are; all others as the model
    holds them, in bfloat16 or float32. One reply at a time.

    With n-grams the threads draft by themselves, between one pass and the next; a draft model has
    an engine of its own, and this one verifies what that one says. Only one of the two works at a
    time, and idle threads sleep.
    """

    name = "persistent-cpu"
    speculates = ("ngram", "draft")
    launches_per_step = 1  # a doorbell for each draft that the host brings

    def __init__(
        self, model: Model, threads: int | None = None, speculation: Speculation | None = None
    ) -> None:
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
        self._ownership = Ownership(self.name)
        self._width = speculation.width if speculation else 1
        self._pace, self._drafter = Pace(self._width), None
        if speculation and speculation.method == "ngram":
            self.resident.words[mb.WIDTH] = self._width
        if speculation and speculation.draft_model:
            self._drafter = ModelDrafter(PersistentCpuEngine(speculation.draft_model, threads))

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

    def decode(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> ResidentRun | DraftedRun:
        check_prompt(self.model, cache, token_ids)
        if self._drafter is None:
            return self._run(cache, token_ids, params)
        _check_cache(self.model, cache)
        self._ownership.check_free()
        pace, width = self._pace, self._width
        return DraftedRun(self, self._drafter, pace, width, cache, token_ids, params)

    def verify(
        self, cache: KVCache, token_ids: Sequence[int], draft: Sequence[int], params: SamplingParams
    ) -> list[Drawn]:
        """See `engine.drafted_run.Verifier`: one doorbell, drawn by the threads."""
        length = cache.length + len(token_ids)
        asked = replace(params, max_tokens=len(draft) + 1)
        run = _VerifyingRun(self.resident, self._ownership, cache, token_ids, draft, asked)
        drawn = [(token.id, token.logprob) for token in run]
        cache.truncate(length)
        return drawn

    def logits(self, cache: KVCache, token_ids: Sequence[int]) -> torch.Tensor:
        """Append `token_ids` one by one; float32 logits [len(token_ids), vocab], for tests."""
        cache.require(len(token_ids))
        rows, one = [], SamplingParams(max_tokens=1)
        for token_id in token_ids:
            list(self._run(cache, [token_id], one))
            held = self.resident.shared.logits[0, : self.model.config.vocab]
            rows.append(torch.from_numpy(held.copy()))  # the next step overwrites it
        return torch.stack(rows)

    def measure_stages(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> StageProfile:
        from engine.cpu_stages import Watcher
        from kernels.cpu_exchange import ITEM_BITS

        check_prompt(self.model, cache, token_ids)
        self.prefill(cache, token_ids[:-1])  # in chunks, which have other stages
        words = self.resident.words
        width, words[mb.WIDTH] = words[mb.WIDTH], 1  # the anatomy is that of a token, not of a pass
        try:
            with Watcher(self.resident, ITEM_BITS) as watcher:
                tokens = list(self._run(cache, token_ids[-1:], params))
        finally:
            words[mb.WIDTH] = width
        return watcher.profile(tokens)

    def close(self) -> None:
        """End the threads, in the middle of a reply too. Idempotent; under a second."""
        self._ownership.closed = True
        if self._drafter is not None:
            self._drafter.close()
        self.resident.close()

    def _run(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams | None
    ) -> ResidentRun:
        _check_cache(self.model, cache)
        self._ownership.check_free()
        return ResidentRun(self.resident, self._ownership, cache, token_ids, params)


class _VerifyingRun(ResidentRun):
    """One pass that verifies a draft; the run's list of tokens is what has been drawn."""

    def __init__(
        self,
        resident: ResidentThreads,
        ownership: Ownership,
        cache: KVCache,
        token_ids: Sequence[int],
        draft: Sequence[int],
        params: SamplingParams,
    ) -> None:
        super().__init__(resident, ownership, cache, token_ids, params)
        self._start_threads = resident.start
        self._draft = draft

    def _ring(self) -> int:
        return self._start_threads(self._cache, self._prompt, self._params, self._draft)


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
