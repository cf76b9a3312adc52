"""Counting what a piece of work dispatches to the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _OperationCounter(TorchDispatchMode):
    """Counts dispatched operations that compute; views only relabel memory and launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def count_launches(work: Callable[[], object], device: torch.device) -> int:
    """Kernels that `work` launches on CUDA (by CUPTI), or operations it dispatches on a CPU."""
    if device.type != "cuda":
        with _OperationCounter() as counter:
            work()
        return counter.count
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize(device)
    kernels = (event for event in profiler.events() if event.device_type.name == "CUDA")
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in kernels)
