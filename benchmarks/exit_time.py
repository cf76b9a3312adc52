"""How soon a command is gone: after Ctrl+C in the middle of a reply, and after its last word.

`python -m benchmarks.exit_time [--rounds N] [--json FILE]`. With a file that holds the result of
another benchmark, only this figure in it is replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.results import result_file, write_json

ROOT = Path(__file__).resolve().parent.parent
ENGINE = "persistent-cpu"
_QUESTION = "Tell me a long story about a lighthouse on a rock far out at sea."
_LIMIT_S = 120.0


def interrupted_ms() -> float:
    """From Ctrl+C, twenty characters into a reply, until the process has gone."""
    with _chat("--max-tokens", "1500") as process:
        assert process.stdout is not None
        if len(process.stdout.read(20)) < 20:
            raise SystemExit("the reply ended before it could be interrupted")
        start = time.perf_counter()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_LIMIT_S)
        spent = time.perf_counter() - start
    if process.returncode != 128 + signal.SIGINT:
        raise SystemExit(f"exit code {process.returncode} after Ctrl+C")
    return spent * 1e3


def finished_ms() -> float:
    """From the last line of output until the process has gone."""
    with _chat("--max-tokens", "5", "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        start = time.perf_counter()
        process.wait(_LIMIT_S)
        spent = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}")
    return spent * 1e3


def exit_ms(rounds: int) -> dict[str, Any]:
    """Median and largest of both, over `rounds` processes each, and how busy the machine was."""
    result: dict[str, Any] = {"engine": ENGINE, "rounds": rounds}
    result["load_average"] = round(os.getloadavg()[0], 2)
    for name, measure in (("interrupted", interrupted_ms), ("finished", finished_ms)):
        times = [measure() for _ in range(rounds)]
        result[name] = {"median": round(statistics.median(times), 1), "max": round(max(times), 1)}
    return result


def _chat(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "app.py"), "chat", _QUESTION, "--engine", ENGINE, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    )  # fmt: skip


def main() -> None:
    """Measure, print one JSON line, and put it into a file's `exit_ms`."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument(
        "--json", type=result_file, help="put the figure into this file as exit_ms"
    )
    options = arguments.parse_args()
    found = exit_ms(options.rounds)
    if options.json:
        whole = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
        write_json(options.json, {**whole, "exit_ms": found})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
