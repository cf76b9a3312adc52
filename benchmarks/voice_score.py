"""What a run of spoken questions and interruptions comes to."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import psutil

from audio.completeness import words


def errors(reference: list[str], heard: list[str]) -> int:
    """Word edits between the two (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for i, left in enumerate(reference):
        diagonal, row[0] = row[0], i + 1
        for j, right in enumerate(heard, 1):
            best = min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
            diagonal, row[j] = row[j], best
    return row[-1]


class Load:
    """How much of the machine others took while we measured."""

    def __init__(self) -> None:
        self._start = self._spent()

    def others(self) -> float:
        """Cores' worth of processor time that was not ours, since the start."""
        now = self._spent()
        wall, busy, own = (after - before for after, before in zip(now, self._start, strict=True))
        return round(max(0.0, busy - own) / wall, 3)

    def _spent(self) -> tuple[float, float, float]:
        machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return time.perf_counter(), sum(machine) - idle, own.user + own.system


def percentiles(values: list[float]) -> dict[str, float | int]:
    p50, p90 = np.percentile(values, [50, 90])
    return {"n": len(values), "p50": round(float(p50), 1), "p90": round(float(p90), 1),
            "max": round(max(values), 1)}  # fmt: skip


def summary(asked: list[dict[str, Any]], stops: list[float | None]) -> dict[str, Any]:
    """What the runs come to, beside what they must reach."""
    total = sum(len(words(turn["question"])) for turn in asked)
    wrong = sum(errors(words(turn["question"]), words(turn["transcript"])) for turn in asked)
    answered = [turn for turn in asked if "ms" in turn]
    names = sorted({name for turn in answered for name in turn["stages"]})
    stages = {name: percentiles([turn["stages"].get(name, 0.0) for turn in answered])["p50"]
              for name in names}  # fmt: skip
    sums = [abs(sum(turn["stages"].values()) - turn["waterfall_ms"]) for turn in answered]
    return {
        "first_audible_ms": percentiles([turn["ms"] for turn in answered]),
        "waterfall_ms": percentiles([turn["waterfall_ms"] for turn in answered]),
        "stages_p50_ms": stages,
        "parts_against_total_max_ms": round(max(sums), 2),
        "early": sum(turn["early"] for turn in asked),
        "unanswered": len(asked) - len(answered),
        "word_error_rate": round(wrong / total, 4),
        "barge_in_ms": percentiles([stop for stop in stops if stop is not None]),
        "barge_ins_not_obeyed": sum(stop is None for stop in stops),
    }
