"""Other programs, asked for a line: absent, failing and slow ones have nothing to say."""

from __future__ import annotations

import subprocess

_TIMEOUT_S = 5.0


def output_of(*command: str) -> str:
    """What `command` prints, stripped; "" where there is no such program, or it fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def nvidia_smi(*arguments: str) -> str:
    """First line of what the driver's own program says; "" where there is no GPU."""
    return output_of("nvidia-smi", *arguments).partition("\n")[0]


def nvidia_driver() -> str:
    """The driver's version; "" where there is none."""
    return nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
