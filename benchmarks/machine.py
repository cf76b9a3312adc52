"""What figures were measured on and with, as far as this machine tells."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

from engine.cpu_cores import cpuinfo
from engine.programs import nvidia_driver, output_of

ROOT = Path(__file__).resolve().parent.parent


def machine(device: torch.device, threads: int, commit: str | None = None) -> dict[str, Any]:
    """Device, driver, versions, commit and date. `commit` overrides what git says."""
    found: dict[str, Any] = {
        "kind": device.type,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "driver": (nvidia_driver() or None) if device.type == "cuda" else None,
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
    lines = [line for line in cpuinfo().splitlines() if line.startswith("model name")]
    models = [line.partition(":")[2].strip() for line in lines]
    return f"{models[0] if models else name}, {os.cpu_count()} logical CPUs"


def git_commit() -> str:
    """This checkout's short hash, with "+" when files differ from it; "unknown" without git."""
    commit = output_of("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    changed = output_of("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return (commit + ("+" if changed else "")) if commit else "unknown"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
