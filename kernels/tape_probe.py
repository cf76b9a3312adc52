"""The read bandwidth of a GPU by bulk copies into shared memory, as the tape kernel reads.

It is what "share of the ceiling" is a share of: on an H200 plain loads reach a twentieth less.
"""

from __future__ import annotations

import ctypes
import statistics
from typing import Any

import torch

from kernels import tape_build as build
from kernels.tape_driver import call, load

COPY_BYTES, DEPTHS = 16384, (3, 6, 12)
_BYTES, _REPEATS = 4 * 2**30, 7


def copied_bytes_per_s(device: torch.device) -> float:
    """Bytes a second: the best depth's median of seven reads of 4 GiB (or half of what is free).

    Takes about 50 ms and a compilation that is kept. `UnpausedError` where NVRTC refuses.
    """
    properties: Any = torch.cuda.get_device_properties(device)
    blocks = properties.multi_processor_count
    arch = build.architecture((properties.major, properties.minor))
    code = build.compiled({"COPY_BYTES": str(COPY_BYTES)}, arch, properties.name, "tape_probe.cu")
    free = torch.cuda.mem_get_info(device)[0]
    copies = min(_BYTES, free // 2) // COPY_BYTES // blocks
    data = torch.ones(copies * blocks * COPY_BYTES // 4, device=device)  # not zeros: they compress
    best = 0.0
    for depth in DEPTHS:
        shared = depth * COPY_BYTES
        if shared + 1024 > properties.shared_memory_per_block_optin:
            continue
        function = load(code, "read_all", 1, shared)
        values = (ctypes.c_void_p(data.data_ptr()), ctypes.c_longlong(copies), ctypes.c_int(depth))
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        times_s = [_timed(function, blocks, shared, pointers) for _ in range(_REPEATS)]
        best = max(best, copies * blocks * COPY_BYTES / statistics.median(times_s))
    return best


def _timed(function: Any, blocks: int, shared: int, pointers: Any) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call(
        "cuLaunchKernel", function, blocks, 1, 1, 1, 1, 1, shared,
        torch.cuda.current_stream().cuda_stream, ctypes.addressof(pointers), 0,
    )  # fmt: skip
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
