"""The persistent engine in Triton: one cooperative launch decodes a whole reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from engine.eager import check_prompt
from engine.gpu import check_gpu_cache, gpu_reason, told_plainly
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.resident import Ownership, ResidentRun
from engine.resident_gpu import GpuResident
from engine.sampling import SamplingParams
from engine.triton_engine import scratch_bytes

if TYPE_CHECKING:
    from kernels.persistent import Grid
    from kernels.tuning import Tuning


class PersistentTritonEngine:
    """Layers, LM head, sampling and the decision to stop, all in one kernel that stays.

    The last token of a prompt and everything after it goes through the kernel; what comes before
    goes through the eager engine's layers, which share the cache. One reply at a time.
    """

    name = "persistent-triton"

    def __init__(
        self,
        model: Model,
        threads: int | None = None,
        grid: Grid | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        from kernels.persistent import DEFAULT_GRID, PersistentKernel

        self.model = model
        self.weight_bytes_per_token = model.weight_bytes_per_token
        self._ownership = Ownership(self.name)
        with told_plainly(self.name, model.config, scratch_bytes(model.config)):
            self.kernel = PersistentKernel(model, grid or DEFAULT_GRID, tuning)
            self.resident = GpuResident(model, self.kernel.launch, self.kernel.seen)
            self.kernel.check(self.resident.run, self.resident.numbers)
            self._warm_up()

    @staticmethod
    def unavailable() -> str | None:
        """No usable GPU or no usable Triton."""
        return gpu_reason()

    def prefill(self, cache: KVCache, token_ids: Sequence[int]) -> None:
        cache.require(len(token_ids))
        check_gpu_cache(self.name, self.model, cache)
        if token_ids:
            check_prompt(self.model, cache, token_ids)
            self._ownership.check_free()
            self.resident.prefill(cache, token_ids)

    def decode(
        self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams
    ) -> ResidentRun:
        check_prompt(self.model, cache, token_ids)
        check_gpu_cache(self.name, self.model, cache)
        self._ownership.check_free()
        return ResidentRun(self.resident, self._ownership, cache, token_ids, params)

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

    def _warm_up(self) -> None:
        """Load everything a reply touches: a module loaded later would wait for the kernel."""
        if self.resident.on_gpu:
            penalised = SamplingParams(max_tokens=2, temperature=1.0, top_k=2, repetition_penalty=2)
            list(self.decode(self.model.new_cache(4), [0, 0], penalised))
