"""The page as a process of its own, to be visited and measured."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from engine.errors import UnpausedError

READY_S = 180.0
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Served:
    url: str
    process: psutil.Process

    def metrics(self) -> dict[str, float]:
        """What Prometheus would read: {name with labels: value}."""
        text = httpx.get(f"{self.url}/metrics", timeout=20).raise_for_status().text
        pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(engine: str) -> Iterator[Served]:
    """`app.py` on a free port, ready to answer. Raises `UnpausedError` when it does not come up."""
    port = free_port()
    command = [sys.executable, "app.py", "--engine", engine, "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, process)
        yield Served(url, psutil.Process(process.pid))
        if process.poll() is not None:
            raise UnpausedError(f"the server ended by itself with code {process.returncode}")
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        if process.poll() is None:
            process.kill()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/healthz", timeout=5).json()["ready"]:
                return
        time.sleep(0.5)
    raise UnpausedError("the server did not come up; start app.py by hand to see why")


@dataclass
class Memory:
    """A server's memory, looked at when it ought to be the same each time.

    `resident` counts what the allocator keeps free for later, some ten MB up or down; `heap` is
    what the program holds (`ui.memory.heap_in_use`), where the server tells. (s, MB) each.
    """

    server: Served
    resident: list[tuple[float, float]] = field(default_factory=list)
    heap: list[tuple[float, float]] = field(default_factory=list)

    def take(self) -> None:
        now = time.monotonic()
        self.resident.append((now, self.server.process.memory_info().rss / 1e6))
        heap_bytes = self.server.metrics().get("unpaused_heap_bytes")
        if heap_bytes is not None:
            self.heap.append((now, heap_bytes / 1e6))


def slope_mb_per_h(samples: Sequence[tuple[float, float]], warm_up: int) -> float | None:
    """Growth after the first `warm_up` samples; None with too few."""
    slope = theil_sen(samples[warm_up:])
    return None if slope is None else round(slope * 3600, 2)


def theil_sen(samples: Sequence[tuple[float, float]]) -> float | None:
    """The growth of y with x in (x, y) samples: the median of the slopes between any two, which a
    few odd ones do not move. None with too few samples.
    """
    slopes = sorted(
        (later[1] - sooner[1]) / (later[0] - sooner[0])
        for index, sooner in enumerate(samples)
        for later in samples[index + 1 :]
    )
    return slopes[len(slopes) // 2] if slopes else None


def check_environment() -> None:
    """Nothing is asked of the hub while something is measured."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
