"""What the GPU engines ask of a machine, and the one clock they read."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model, ModelConfig
from engine.sampling import SamplingParams

_TRITON = ((3, 6), (4, 0))  # from, below
_MIN_CAPABILITY = (8, 0)  # bfloat16 in hardware
_DEPENDENT_LAUNCH = (9, 0)


@functools.cache
def gpu_reason() -> str | None:
    """Why Triton kernels cannot run here, in one line, or None. Does not import Triton."""
    if not torch.cuda.is_available():
        return "there is no NVIDIA GPU that this torch can use"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install -e '.[gpu]'"
    version = importlib.metadata.version("triton")
    release = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if not _TRITON[0] <= release < _TRITON[1]:
        return f"Triton {version} is not supported: install triton>=3.6,<4"
    capability = torch.cuda.get_device_capability()
    if capability < _MIN_CAPABILITY:
        name = torch.cuda.get_device_name()
        return f"{name} (sm_{capability[0]}{capability[1]}) is older than sm_80"
    return None


def launches_dependently(device: torch.device) -> bool:
    """Whether programmatic dependent launch exists on `device`: Hopper and newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _DEPENDENT_LAUNCH


def shape_of(config: ModelConfig) -> str:
    """A model's shape for messages."""
    return (
        f"{config.layers} layers of hidden {config.hidden}, intermediate {config.intermediate}, "
        f"{config.heads}/{config.kv_heads} heads of {config.head_dim}, vocabulary {config.vocab}"
    )


def check_gpu_cache(engine: str, model: Model, cache: KVCache) -> None:
    """Refuse a cache that the kernels of `engine` were not made for."""
    c = model.config
    layers, kv_heads, _, head_dim = cache.k.shape
    given = (layers, kv_heads, head_dim, cache.k.dtype, cache.k.device)
    wanted = (c.layers, c.kv_heads, c.head_dim, model.dtype, model.device)
    if given != wanted:
        raise UnpausedError(
            f"engine {engine} was built for a cache of {_cache_line(wanted)} and was given "
            f"{_cache_line(given)}: make the cache with this model's new_cache()"
        )
    if cache.max_positions > c.max_positions:
        raise UnpausedError(
            f"the cache holds {cache.max_positions} positions, the model {c.max_positions}: "
            "make the cache with this model's new_cache()"
        )


def _cache_line(key: tuple[int, int, int, torch.dtype, torch.device]) -> str:
    layers, kv_heads, head_dim, dtype, device = key
    name = str(dtype).removeprefix("torch.")
    return f"[{layers} layers, {kv_heads} heads, any length, {head_dim}] in {name} on {device}"


@contextmanager
def told_plainly(engine: str, config: ModelConfig, needed_bytes: int) -> Iterator[None]:
    """Turn what building a GPU engine can run into, into one line."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        raise UnpausedError(
            f"engine {engine} needs {needed_bytes / 1e6:.0f} MB beside the weights for "
            f"{shape_of(config)}; {free_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB are free: "
            "free some or choose a smaller model"
        ) from error
    except Exception as error:
        # Triton's own class, by name: it is not imported where it may be missing.
        if type(error).__name__ not in ("OutOfResources", "PTXASError", "CompilationError"):
            raise
        raise UnpausedError(
            f"engine {engine} cannot run {shape_of(config)} on this GPU "
            f"({str(error).splitlines()[0]}): use another engine"
        ) from error


def wait_for_word(word: torch.Tensor, value: int | None, timeout_s: float, what: str) -> None:
    """Poll pinned memory until `word` (int64, one element) is `value`, or not 0 for None.

    Never synchronises the device. Raises `UnpausedError` after `timeout_s`, or as soon as the
    device reports an error.
    """
    view, deadline, checked = word.numpy().reshape(-1), time.monotonic() + timeout_s, 0.0
    while view[0] == 0 if value is None else view[0] != value:
        now = time.monotonic()
        if now > deadline:
            raise UnpausedError(f"the GPU gave no answer for {timeout_s:.0f} s: {what}")
        if now - checked > 0.1:
            checked = now
            raise_device_error(what)
        time.sleep(20e-6)


def device_clock_ns(stamp: torch.Tensor, write: Callable[[], object], timeout_s: float) -> int:
    """This moment on the device's clock, to within the latency of a small kernel.

    `write` launches a kernel that writes the clock to `stamp`, pinned int64 [1].
    """
    stamp.zero_()
    before = time.perf_counter_ns()
    write()
    wait_for_word(stamp, None, timeout_s, "reading its clock")
    return int(stamp[0]) - (time.perf_counter_ns() - before)


def mark_seen(seen: torch.Tensor, cache: KVCache, params: SamplingParams) -> None:
    """Set `seen`, int8 [vocab] on the device, to the tokens a repetition penalty applies to."""
    seen.zero_()
    if params.repetition_penalty != 1.0 and cache.length:
        seen[torch.tensor(sorted(set(cache.token_ids))).to(seen.device)] = 1


def raise_device_error(what: str) -> None:
    """Raise `UnpausedError` if the device has failed; does not wait for it."""
    if not torch.cuda.is_available():
        return
    try:
        torch.cuda.current_stream().query()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UnpausedError(f"the GPU failed ({reason}): {what}; restart the program") from error
