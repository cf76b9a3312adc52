"""The read bandwidth of this machine, measured: the ceiling of batch-1 decoding."""

from __future__ import annotations

import functools
import statistics
import time

import torch

_CPU_BYTES = 256 * 2**20  # past any last-level cache
_GPU_BYTES = 4 * 2**30
_REPEATS = 7


@functools.cache
def read_bandwidth(device: str = "cpu", threads: int | None = None) -> float:
    """Bytes per second that a plain sum over a large array reads; the median of seven.

    Measured once per process and device, in about 0.3 s. On the CPU with `threads` threads, or
    as many as PyTorch uses.
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
    return data.nbytes / statistics.median(times_s)
