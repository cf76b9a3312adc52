"""The read bandwidth of this machine, measured: the ceiling of batch-1 decoding."""

from __future__ import annotations

import functools
import statistics
import time
from contextlib import suppress

import torch

from engine.errors import UnpausedError

_CPU_BYTES = 256 * 2**20  # past any last-level cache
_GPU_BYTES = 4 * 2**30
_REPEATS = 7


@functools.cache
def read_bandwidth(device: str = "cpu", threads: int | None = None) -> float:
    """Bytes per second that a plain sum over a large array reads; the median of seven.

    Measured once per process and device, in about 0.3 s. On the CPU with `threads` threads, or
    as many as PyTorch uses. On a GPU that has them, bulk copies into shared memory read the array
    too, and the faster of the two is the ceiling.
    """
    on_gpu = device.startswith("cuda")
    if threads and not on_gpu:
        torch.set_num_threads(threads)
    data = torch.ones((_GPU_BYTES if on_gpu else _CPU_BYTES) // 4, device=device)
    data.sum()
    times_s = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        data.sum().item()  # .item() waits for the GPU
        times_s.append(time.perf_counter() - start)
    summed = data.nbytes / statistics.median(times_s)
    del data
    return max(summed, _copied(torch.device(device))) if on_gpu else summed


def _copied(device: torch.device) -> float:
    """By bulk copies; 0 where they cannot be had."""
    from engine.persistent_tape import PersistentTapeEngine

    if PersistentTapeEngine.unavailable():
        return 0.0
    from kernels.tape_probe import copied_bytes_per_s

    with suppress(UnpausedError):
        return copied_bytes_per_s(device)
    return 0.0
