"""The figures of a turn as terminals show them: in words, as bars, as a strip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_LEVELS = " ▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = " .:-=+*#@"
_SHOWN_MS = 0.05  # less would be shown as 0.0
_STRIP_TOP = 1.25  # of the 99th percentile: one slow token must not flatten the others


def summary(figures: Mapping[str, Any]) -> str:
    """One line of `ReplyMetrics.as_dict()`."""
    tpot = figures["tpot_ms"]
    parts = [
        figures["engine"],
        figures["model"],
        f"{figures['tokens']} tokens",
        number(figures["tokens_per_s"], "tokens/s"),
        f"TTFT {number(figures['ttft_ms'], 'ms')}",
        f"TPOT p50 {number(tpot['p50'], 'ms')}, p99 {number(tpot['p99'], 'ms')}",
    ]
    if figures["speculation"]:
        parts.append(drafts(figures["speculation"]))
    return " · ".join(parts)


def drafts(speculation: Mapping[str, Any]) -> str:
    """What speculative decoding did, in words: "3.4 tokens a pass, 83% of drafts right"."""
    acceptance, per_pass = speculation["acceptance"], speculation["tokens_per_pass"]
    if acceptance is None or per_pass is None:
        return "nothing drafted"
    return f"{per_pass:.1f} tokens a pass, {acceptance:.0%} of drafts right"


def sum_of(stages: Sequence[Mapping[str, Any]], first_audio_ms: float | None) -> str:
    """The stages as a sum: "endpointing 192.0 ms + ... = 600.0 ms to first audio"."""
    terms = " + ".join(f"{stage['name']} {number(stage['ms'], 'ms')}" for stage in stages)
    if first_audio_ms is None:
        return terms
    return f"{terms} = {number(first_audio_ms, 'ms')} to first audio"


def number(value: float | None, unit: str) -> str:
    """A figure with its unit, or a dash for none."""
    return "-" if value is None else f"{value:,.1f} {unit}"


def strip(latencies_ms: Sequence[float], width: int, plain: bool = False) -> str:
    """The last `width` token latencies, each as a character as high as it was long."""
    if not len(latencies_ms) or width < 1:
        return ""
    levels = _PLAIN_LEVELS if plain else _LEVELS
    shown = np.asarray(latencies_ms[-width:], dtype=np.float64)
    top = max(float(np.percentile(latencies_ms, 99)) * _STRIP_TOP, 1e-6)
    heights = np.clip(np.ceil(shown / top * (len(levels) - 1)), 1, len(levels) - 1)
    return "".join(levels[int(height)] for height in heights)


def waterfall(stages: Sequence[Mapping[str, Any]], width: int) -> list[tuple[str, str, str]]:
    """(name, figure, bar) of each stage; `width` characters stand for the whole time.

    A bar begins where the one before it ended, and every stage that took time has one to see.
    """
    stages = [stage for stage in stages if stage["ms"] >= _SHOWN_MS]
    total = sum(stage["ms"] for stage in stages) or 1.0
    rows, before = [], 0.0
    for stage in stages:
        start = min(width - 1, int(before / total * width))
        before += stage["ms"]
        end = max(start + 1, round(before / total * width))
        rows.append((stage["name"], number(stage["ms"], "ms"), " " * start + "#" * (end - start)))
    return rows
