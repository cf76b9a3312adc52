"""Which cores this process may compute on, and what the system says of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def physical_cores() -> list[int]:
    """One logical CPU of each physical core that this process may use; at least one.

    Sibling hardware threads share a core's vector units, so a second thread there gains nothing.
    Where the system does not tell, the numbers only count.
    """
    if not hasattr(os, "sched_getaffinity"):
        return list(range(psutil.cpu_count(logical=False) or os.cpu_count() or 1))
    first_of_core: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = str(cpu)
        with suppress(OSError):
            siblings = Path(_TOPOLOGY.format(cpu)).read_text("ascii").strip()
        first_of_core.setdefault(siblings, cpu)
    return list(first_of_core.values())[: _quota()]


def cpuinfo() -> str:
    """What Linux says of the processors; "" elsewhere."""
    with suppress(OSError):
        return Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    return ""


def _quota() -> int | None:
    """Whole cores that a container's limit leaves, None without one."""
    with suppress(OSError, ValueError):
        quota, period = _QUOTA.read_text("ascii").split()
        if quota != "max":
            return max(1, int(quota) // int(period))
    return None


def pin(cpu: int) -> None:
    """Keep the calling thread on `cpu`, where the system allows it."""
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, {cpu})
