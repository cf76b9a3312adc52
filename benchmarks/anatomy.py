"""Where one token's time goes: measured by a profiler, or told by an engine that stays resident.

Launched engines are watched by torch.profiler (CUPTI on a GPU): every kernel, and every gap in
which the device had nothing to do. A gap after a copy to the host is time in which the device
waited for the host to look at a token; every other gap is time in which a kernel was not there
yet. A resident engine is opaque to a profiler, one kernel a reply: it tells its own stages
(`engine.anatomy`) or nothing, and then this says so in words.

All results are plain data, microseconds a token; benchmarks/anatomy_parts.py makes bars of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.timing import EngineSide
from engine.anatomy import SelfMeasuring, StageProfile
from engine.base import DecodeEngine
from engine.eager import EagerEngine
from engine.kv_cache import KVCache
from engine.models.base import Model, ModelConfig
from engine.sampling import SamplingParams

TOKENS = 16
_TOP = 12
_TO_HOST = "Memcpy DtoH"


@dataclass(frozen=True)
class Span:
    """Something the device did. Microseconds of one clock."""

    start_us: float
    end_us: float
    name: str


def anatomy(side: EngineSide, cache: KVCache, prompt: Sequence[int]) -> dict[str, Any]:
    """One engine's anatomy, decoding `TOKENS` tokens after the prompt in `cache`."""
    engine, params = side.engine, SamplingParams(max_tokens=TOKENS)
    if isinstance(engine, SelfMeasuring):
        cache.truncate(len(prompt) - 1)
        longer = SamplingParams(max_tokens=4 * TOKENS)
        return _of_stages(engine.measure_stages(cache, prompt[-1:], longer))
    launches = side.reply(params).launches_per_token
    if launches is not None and launches < 1:  # nor is a resident kernel a good place for CUPTI
        return {"reason": f"{engine.name} stays on the device and gives no counters of its own"}
    return _profiled(side, params) | {"intermediate_bytes": _intermediates(engine)}


def _of_stages(found: StageProfile) -> dict[str, Any]:
    return {
        "method": found.method,
        "tokens": found.tokens,
        "token_us": round(found.token_us, 2),
        "stages": [
            {"stage": s.stage, "work_us": round(s.work_us, 3), "wait_us": round(s.wait_us, 3)}
            for s in found.stages
        ],
    }


def _profiled(side: EngineSide, params: SamplingParams) -> dict[str, Any]:
    """Busy time and gaps. Raises `RuntimeError` when the profiler saw nothing."""
    on_gpu = side.engine.model.device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]):  # the profiler's own start-up is not counted
        side.reply(SamplingParams(max_tokens=2))
    with profile(activities=[activity]) as profiler:
        tokens = len(side.reply(params).tokens)
        if on_gpu:
            torch.cuda.synchronize(side.engine.model.device)
    spans = _device_spans(profiler) if on_gpu else _operations(profiler)
    if not spans:
        raise RuntimeError("the profiler recorded nothing")
    found = gaps(spans)
    busy: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        busy[span.name] += (span.end_us - span.start_us) / tokens
    busiest = sorted(busy.items(), key=lambda item: -item[1])[:_TOP]
    what = "CUPTI kernel records" if on_gpu else "PyTorch's operator records"
    return {
        "method": f"torch.profiler, {what}; profiling lengthens gaps, so the bar takes their "
        "proportions from here and their sum from the time that was not profiled",
        "tokens": tokens,
        **{name: round(us / tokens, 2) for name, us in found.items()},
        "launches": round(len(spans) / tokens, 1),
        "busiest": {name[:80]: round(us, 2) for name, us in busiest},
    }


def gaps(spans: Sequence[Span]) -> dict[str, float]:
    """Microseconds in which something ran, and in which nothing did, by what came before."""
    found = {"busy_us": 0.0, "launch_gap_us": 0.0, "host_gap_us": 0.0}
    end, last = spans[0].start_us, ""
    for span in sorted(spans, key=lambda span: span.start_us):
        if span.start_us > end:
            kind = "host_gap_us" if last.startswith(_TO_HOST) else "launch_gap_us"
            found[kind] += span.start_us - end
        found["busy_us"] += max(0.0, span.end_us - max(end, span.start_us))
        if span.end_us > end:
            end, last = span.end_us, span.name
    return found


def _device_spans(profiler: Any) -> list[Span]:
    return [
        Span(event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if event.device_type.name == "CUDA" and event.time_range.end > event.time_range.start
    ]


def _operations(profiler: Any) -> list[Span]:
    """The outermost operators: what one calls inside another is the outer one's work."""
    return [
        Span(event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if event.cpu_parent is None and event.name.startswith("aten::")
    ]


class _Traffic(TorchDispatchMode):
    """Bytes that operations read and write of tensors that are neither weights nor KV cache."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            results = result if isinstance(result, (list, tuple)) else [result]
            for value in (*args, *(kwargs or {}).values(), *results):
                if isinstance(value, torch.Tensor) and not self._is_known(value):
                    self.bytes += value.numel() * value.element_size()
        return result

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._known


def _intermediates(engine: DecodeEngine) -> int:
    """Bytes of intermediate values that one token writes and reads back."""
    if isinstance(engine, EagerEngine):
        return counted_intermediates(engine)
    return fused_intermediates(engine.model.config)


def counted_intermediates(engine: EagerEngine) -> int:
    """Counted on one real step of the eager engine."""
    cache = engine.model.new_cache(2)
    engine.step(cache, [0])
    with _Traffic([*engine.model.weights.tensors().values(), cache.k, cache.v]) as traffic:
        engine.step(cache, [0])
    return traffic.bytes


def fused_intermediates(c: ModelConfig) -> int:
    """By the shapes: what five fused stages a layer hand on in float32, written and read once."""
    layer = 2 * c.hidden + c.qkv_size + c.q_size + c.intermediate
    return 4 * 2 * (c.layers * layer + c.vocab)


def floors_us(model: Model, weight_bytes: int, positions: float, ceiling: float) -> dict[str, Any]:
    """What reading alone takes at `ceiling` bytes/s: weights, and keys and values."""
    kv_bytes = positions * model.new_cache(1).bytes_per_position
    return {
        "weights_us": round(weight_bytes / ceiling * 1e6, 2),
        "kv_us": round(kv_bytes / ceiling * 1e6, 2),
    }
