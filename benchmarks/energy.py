"""Energy per token, where NVML offers it: the board's own counter over a few seconds of replies."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.timing import Side
from engine.sampling import SamplingParams

MIN_SECONDS = 2.0  # the counter moves every 20 to 100 ms
METHOD = "NVML total energy of the whole board, idle draw included, over at least 2 s of replies"

Counter = Callable[[], int]  # millijoules since the driver was loaded


def energy_counter(device: torch.device) -> Counter | None:
    """The board's energy counter, or None: no GPU, no nvidia-ml-py, or a GPU older than Volta."""
    if device.type != "cuda":
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    return lambda: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))


def energy_mj_per_token(
    side: Side, params: SamplingParams, counter: Counter, seconds: float = MIN_SECONDS
) -> float:
    """Millijoules a token while `side` does nothing but decode, for at least `seconds`."""
    start, before, tokens = time.perf_counter(), counter(), 0
    while time.perf_counter() - start < seconds:
        tokens += len(side.reply(params).tokens)
    return round((counter() - before) / tokens, 2)
