"""How good were the waits that visitors were told?

Every forecast of something random errs; what it owes is to be right on average, whatever it says,
and as near as what was known allowed. So there are two kinds of figures: errors of single waits
(those over `LONG_WAIT_S`, since a shorter one is over before it can be read), and told against
real means of all of them, in bands of what was told.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.visitor import Heard

TOLERANCE = 0.3
LONG_WAIT_S = 2.0
BANDS_S = (0.0, 1.0, 2.0, 4.0, 8.0, float("inf"))
_FEW = 10  # told waits; fewer have no mean to speak of

Pair = tuple[float, float]  # (told, real) seconds


def wait_figures(heard: Iterable[Heard]) -> dict[str, Any]:
    """Of all turns: those that were told first, those told at any time, and how turns differed."""
    heard = list(heard)
    told = [pairs for turn in heard if (pairs := turn.wait_errors())]
    every = [pair for pairs in told for pair in pairs]
    served = [turn.served_s for turn in heard if turn.served_s is not None]
    return {
        "turns_that_waited": len(told),
        "first_told": _errors([pairs[0] for pairs in told]),
        "told_at_any_time": _errors(every),
        "on_average": _means(every),
        "by_told_s": {
            f"{low:g} to {high:g}": _means([pair for pair in every if low <= pair[0] < high])
            for low, high in pairwise(BANDS_S)
        },
        "turn_s": _spread(served),
    }


def right_on_average(figures: dict[str, Any]) -> bool:
    """Whether what was told was within `TOLERANCE` of what it was: on average, and for a turn."""
    means, first = figures["on_average"], figures["first_told"]
    fair = means["count"] < _FEW or abs(means["told_s"] / means["real_s"] - 1) <= TOLERANCE
    return fair and (first["count"] < _FEW or first["median_error"] <= TOLERANCE)


def _errors(pairs: list[Pair]) -> dict[str, Any]:
    """Relative ones, of waits that were long."""
    errors = [abs(told - real) / real for told, real in pairs if real >= LONG_WAIT_S]
    if not errors:
        return {"count": 0}
    return {
        "count": len(errors),
        "median_error": round(statistics.median(errors), 3),
        "p90_error": round(float(np.percentile(errors, 90)), 3),
        "within_30_percent": round(sum(error <= TOLERANCE for error in errors) / len(errors), 3),
    }


def _means(pairs: list[Pair]) -> dict[str, Any]:
    if not pairs:
        return {"count": 0}
    told, real = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    return {"count": len(pairs), "told_s": round(told, 2), "real_s": round(real, 2)}


def _spread(seconds: list[float]) -> dict[str, Any]:
    """How much turns differ, which bounds what can be told of one that has not begun."""
    if len(seconds) < 2:
        return {"count": len(seconds)}
    return {
        "count": len(seconds),
        "mean": round(statistics.fmean(seconds), 2),
        "deviation": round(statistics.stdev(seconds), 2),
        "shortest": round(min(seconds), 2),
        "longest": round(max(seconds), 2),
    }
