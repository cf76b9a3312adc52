"""The persistent engine in Triton: one cooperative launch decodes a whole reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.gpu import gpu_reason, told_plainly
from engine.models.base import Model
from engine.resident_gpu import GpuResident, GpuResidentEngine
from engine.sampling import SamplingParams
from engine.triton_engine import scratch_bytes

if TYPE_CHECKING:
    from kernels.persistent import Grid
    from kernels.tuning import Tuning


class PersistentTritonEngine(GpuResidentEngine):
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

        super().__init__(model)
        with told_plainly(self.name, model.config, scratch_bytes(model.config)):
            self.kernel = PersistentKernel(model, grid or DEFAULT_GRID, tuning)
            self.resident = GpuResident(model, self.kernel.launch, self.kernel.seen)
            self.kernel.check(self.resident.run, self.resident.numbers)
            self._warm_up()

    @staticmethod
    def unavailable() -> str | None:
        """No usable GPU or no usable Triton."""
        return gpu_reason()

    def _warm_up(self) -> None:
        """Load everything a reply touches: a module loaded later would wait for the kernel."""
        if self.resident.on_gpu:
            penalised = SamplingParams(max_tokens=2, temperature=1.0, top_k=2, repetition_penalty=2)
            list(self.decode(self.model.new_cache(4), [0, 0], penalised))
