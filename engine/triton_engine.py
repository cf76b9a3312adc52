"""Fused Triton kernels launched one by one from Python: five a layer instead of a dozen."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch

from engine.base import DecodeRun, check_prompt
from engine.device_drafts import DraftedDeviceRun, DraftModel, Passes
from engine.device_run import DeviceRun
from engine.gpu import check_gpu_cache, device_clock_ns, gpu_reason, told_plainly
from engine.kv_cache import KVCache
from engine.models.base import Model, ModelConfig
from engine.resident_gpu import PromptEngine
from engine.sampling import SamplingParams
from engine.speculation import Speculation

if TYPE_CHECKING:
    from kernels.filters import Filters
    from kernels.ops import StepKernels
    from kernels.tuning import Tuning

_CLOCK_TIMEOUT_S = 10.0


class TritonEngine:
    """Kernel-per-op decoding with fused kernels, on a GPU (or interpreted, for tests).

    Prompts go through the eager engine's layers, which share the cache; the last token of a
    prompt and everything after it goes through the kernels.
    """

    name = "triton"
    speculates = ("ngram", "draft")
    steps_ahead = 2  # launched but not read; hides the host's polling

    def __init__(
        self,
        model: Model,
        threads: int | None = None,
        tuning: Tuning | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.model = model
        self.weight_bytes_per_token = model.weight_bytes_per_token
        self.lock = threading.RLock()
        self._owner: DeviceRun | None = None
        self._launched = 0  # steps, in the engine's life
        self._counted: dict[Hashable, int] = {}  # kernels of what was played, by its name
        self._passes: Passes | None = None
        with told_plainly(self.name, model.config, scratch_bytes(model.config)):
            self._prompts = PromptEngine(model, threads)
            self.kernels = self._make_kernels(threads, tuning, speculation)
            self._warm_up()

    @staticmethod
    def unavailable() -> str | None:
        """No usable GPU or no usable Triton."""
        return gpu_reason()

    def prefill(self, cache: KVCache, token_ids: Sequence[int]) -> None:
        check_gpu_cache(self.name, self.model, cache)
        if token_ids:
            self._prompts.prefill(cache, token_ids)

    def decode(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams) -> DecodeRun:
        check_prompt(self.model, cache, token_ids)
        check_gpu_cache(self.name, self.model, cache)
        if self._passes is not None:
            return DraftedDeviceRun(self, self._passes, cache, token_ids, params)
        return DeviceRun(self, cache, token_ids, params)

    @torch.inference_mode()
    def logits(self, cache: KVCache, token_ids: Sequence[int]) -> torch.Tensor:
        """Append `token_ids`, a decode step each; float32 logits [len(token_ids), vocab]."""
        cache.require(len(token_ids))
        check_gpu_cache(self.name, self.model, cache)
        rows = []
        with self.lock:
            self.hand_to(None)
            for token_id in token_ids:
                self.kernels.bind(cache, token_id, SamplingParams())
                self.launch(cache, SamplingParams())
                rows.append(self.kernels.logits.clone())
                cache.token_ids.append(token_id)
        return torch.stack(rows)

    def close(self) -> None:
        """Nothing runs once the device has done what was launched."""

    def launch(self, cache: KVCache, params: SamplingParams) -> int:
        """Launch one step; the sequence number its token will have in the ring."""
        filters = self.filters(params)
        self.play(filters, cache.k, lambda: self.kernels.step(filters))
        return self.count_step()

    def play(self, name: Hashable, keys: torch.Tensor, work: Callable[[], None]) -> bool:
        """Launch the kernels of `work`, always the same under `name`; `keys` are the cache's.

        Whether something had to be made first, which held the device up.
        """
        self.count(name, work)
        return False

    def count(self, name: Hashable, work: Callable[[], None]) -> None:
        """Launch `work` and remember under `name` how many kernels it has."""
        before = self._all_launches()
        work()
        self._counted[name] = self._all_launches() - before

    def filters(self, params: SamplingParams) -> Filters:
        """The filters that a reply with `params` needs."""
        return filters_of(params, self.model.config.vocab)

    def count_step(self) -> int:
        """One more step or pass is launched; its number."""
        self._launched += 1
        return self._launched

    def launches_of(self, name: Hashable) -> int:
        """Kernels of what was played as `name`, counted when it was launched or captured."""
        return self._counted[name]

    def launches_per_step(self, params: SamplingParams) -> int:
        """Kernels of one step without drafts."""
        return self._counted[self.filters(params)]

    def hand_to(self, run: DeviceRun | None) -> bool:
        """Make `run` the owner of the device state; whether it was not, and has to write its own.

        The owner before it gets the tokens that are under way.
        """
        if self._owner is run:
            return False
        if self._owner is not None:
            self._owner.read_under_way()
        self._owner = run
        return True

    def ring_entry(self, sequence: int) -> torch.Tensor:
        """int64 [4] of the ring: id, time_ns, log-probability bits, sequence."""
        return self.kernels.ring[(sequence - 1) % len(self.kernels.ring)]

    def moment_ns(self, time_ns: int) -> int:
        """`time_ns` of a ring entry; interpreted kernels have no clock, so it is now."""
        return time_ns if self.kernels.on_gpu else time.perf_counter_ns()

    def new_stamp(self) -> torch.Tensor:
        """int64 [1], zero, which a kernel can write and the host can watch."""
        return torch.zeros(1, dtype=torch.int64, pin_memory=self.kernels.on_gpu)

    def clock_ns(self) -> int:
        """This moment on the engine's clock, to within the latency of a small kernel."""
        if not self.kernels.on_gpu:
            return time.perf_counter_ns()
        stamp = self.new_stamp()
        return device_clock_ns(stamp, lambda: self.kernels.stamp(stamp), _CLOCK_TIMEOUT_S)

    def _make_kernels(
        self, threads: int | None, tuning: Tuning | None, speculation: Speculation | None
    ) -> StepKernels:
        from kernels.column_ops import ColumnKernels
        from kernels.ops import StepKernels

        chosen = tuning or self._tuning_for(self.model)
        if speculation is None:
            return StepKernels(self.model, chosen, self._dependent())
        draft, model = None, speculation.draft_model
        if model is not None:
            its = tuning or self._tuning_for(model)
            draft = DraftModel(model, ColumnKernels(model, its, self._dependent()), threads)
        kernels = ColumnKernels(
            self.model, chosen, self._dependent(), speculation.width, ngram=draft is None
        )
        self._passes = Passes(self, kernels, speculation, draft)
        return kernels

    @staticmethod
    def _tuning_for(model: Model) -> Tuning:
        from kernels.tuning import tuning_for

        gpu = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu"
        return tuning_for(model.config, gpu)

    def _all_launches(self) -> int:
        draft = self._passes.draft if self._passes is not None else None
        return self.kernels.launches + (draft.kernels.launches if draft is not None else 0)

    def _dependent(self) -> bool:
        return False

    def _warm_up(self) -> None:
        """Compile every kernel now, not in the middle of a reply."""
        if not self.kernels.on_gpu:  # interpreted: there is nothing to compile
            return
        from kernels.filters import Filters

        scratch, flags = self.model.new_cache(1), (False, True)
        every = [Filters(k, p, m) for k in flags for p in flags for m in flags]
        for filters in every:
            self.kernels.bind(scratch, 0, SamplingParams())
            self.count(filters, functools.partial(self.kernels.step, filters))
            self.count_step()
        if self._passes is not None:
            self._passes.warm_up(scratch, every)
        torch.cuda.synchronize(self.model.device)


def filters_of(params: SamplingParams, vocab: int) -> Filters:
    """The filters a reply needs; none when it is greedy."""
    from kernels.filters import Filters

    if params.greedy:
        return Filters()
    return Filters(0 < params.top_k < vocab, params.top_p < 1, params.min_p > 0)


def scratch_bytes(config: ModelConfig) -> int:
    """About what an engine allocates beside the weights: RoPE tables, logits, scratch cache."""
    c = config
    rope = 5 * c.max_positions * c.head_dim * 4
    cache = 2 * c.layers * c.kv_size * 2
    return rope + 16 * c.vocab + cache + 64 * c.q_size * 4
