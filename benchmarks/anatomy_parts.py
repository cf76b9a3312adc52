"""From an anatomy to one stacked bar per engine. Plain data in, plain data out; no PyTorch.

A bar is as long as the time per token that was measured without any profiler. Reading weights, keys
and values at the measured ceiling is the floor nobody can go under; everything above it is
overhead, and the bar says of what kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WEIGHTS = "weights, read at the ceiling"
KV = "keys and values, read at the ceiling"
INTERMEDIATES = "intermediate values, if they went to memory"
KERNELS = "kernels beyond their reading"
WAITING = "synchronisation"
LAUNCHES = "launch gaps"
UNDIVIDED = "above the floor, not divided further"
PARTS = (WEIGHTS, KV, INTERMEDIATES, KERNELS, WAITING, LAUNCHES, UNDIVIDED)
FLOOR = (WEIGHTS, KV)


@dataclass(frozen=True)
class Bar:
    """One engine's token. `parts`: (name, microseconds), summing to `total_us`."""

    engine: str
    total_us: float
    parts: list[tuple[str, float]]
    note: str

    @property
    def overhead_us(self) -> float:
        """What is above the floor."""
        return self.total_us - sum(us for name, us in self.parts if name in FLOOR)


def anatomy_parts(entry: Mapping[str, Any]) -> dict[str, Bar]:
    """Every timed engine's bar, in the order they were measured."""
    ceiling = entry["read_ceiling_bytes_per_s"]
    anatomies = entry.get("anatomy", {})
    return {
        name: _bar(name, figures, anatomies.get(name, {}), ceiling)
        for name, figures in entry.get("engines", {}).items()
        if "floor_us" in figures
    }


def overhead_removed(entry: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """{engine: {rival: share}}: how much of the rival's overhead the engine does without.

    Negative when it has more. Only engines that stay resident (fewer launches than tokens).
    """
    bars = anatomy_parts(entry)
    found: dict[str, dict[str, float]] = {}
    for name, bar in bars.items():
        launches = entry["engines"][name].get("launches_per_token")
        if launches is not None and launches < 1:
            found[name] = {
                other: round(1 - bar.overhead_us / rival.overhead_us, 4)
                for other, rival in bars.items()
                if entry["engines"][other]["launches_per_token"] >= 1 and rival.overhead_us > 0
            }
    return {name: rivals for name, rivals in found.items() if rivals}


def _bar(name: str, figures: Mapping[str, Any], found: Mapping[str, Any], ceiling: float) -> Bar:
    total = figures["tpot_p50_ms"] * 1e3
    floor = figures["floor_us"]
    weights = min(floor["weights_us"], total)
    kv = min(floor["kv_us"], total - weights)
    parts = [(WEIGHTS, weights), (KV, kv)]
    above = total - weights - kv
    if "busy_us" in found:
        rest, note = _launched(above, total, found, ceiling)
    elif "stages" in found:
        rest, note = _resident(above, total, found)
    else:
        reason = found.get("reason", "no anatomy was taken")
        rest, note = [(UNDIVIDED, above)], reason
    return Bar(name, total, [(part, us) for part, us in parts + rest if us > 0], note)


def _launched(
    above: float, total: float, found: Mapping[str, Any], ceiling: float
) -> tuple[list[tuple[str, float]], str]:
    """Gaps are what the kernels leave of the unprofiled token; their kinds as profiled.

    Where profiling stretched the kernels themselves past the whole token, gaps keep the share of
    the token that they had in the profile.
    """
    busy, profiled = found["busy_us"], found["launch_gap_us"] + found["host_gap_us"]
    gap = total - busy if busy <= total else total * profiled / (busy + profiled)
    gap = min(gap, above)
    launch = gap * found["launch_gap_us"] / profiled if profiled else gap
    kernels = above - gap
    intermediates = min(kernels, found.get("intermediate_bytes", 0) / ceiling * 1e6)
    note = found["method"]
    if busy > total:
        note += f"; profiled kernels took {busy:.0f} us, longer than the whole token"
    parts = [
        (INTERMEDIATES, intermediates),
        (KERNELS, kernels - intermediates),
        (WAITING, gap - launch),
        (LAUNCHES, launch),
    ]
    return parts, note


def _resident(
    above: float, total: float, found: Mapping[str, Any]
) -> tuple[list[tuple[str, float]], str]:
    """The engine's own waiting, scaled to the token that was not measured from within."""
    waiting = sum(stage["wait_us"] for stage in found["stages"])
    working = sum(stage["work_us"] for stage in found["stages"])
    wait = min(above, total * waiting / (waiting + working)) if waiting + working else 0.0
    note = f"{found['method']} ({found['token_us']:.0f} us a token while it was measured)"
    return [(KERNELS, above - wait), (WAITING, wait)], note
