"""What figures were measured on and with, as far as this machine tells."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 10.0


def machine(device: torch.device, threads: int, commit: str | None = None) -> dict[str, Any]:
    """Device, driver, versions, commit and date. `commit` overrides what git says."""
    found: dict[str, Any] = {
        "kind": device.type,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "driver": _driver() if device.type == "cuda" else None,
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "commit": commit or git_commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    if device.type == "cpu":
        found["threads"] = threads
    return found


def cpu_name() -> str:
    """The processor and how many logical CPUs there are of it."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else name}, {os.cpu_count()} logical CPUs"


def git_commit() -> str:
    """This checkout's short hash, with "+" when files differ from it; "unknown" without git."""
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return (commit + ("+" if changed else "")) if commit else "unknown"


def _driver() -> str | None:
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return _output(*query).partition("\n")[0] or None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
