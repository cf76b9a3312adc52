"""How much of a turn the engine was, in numbers and in one plain sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ENGINE_STAGES = frozenset({"prefill", "thinking", "first_clause"})
SMALL, LARGE = 0.15, 0.4  # shares of the turn; between them the engine is a part among others

StageDict = dict[str, Any]  # {"name", "ms"}


def with_thinking(stages: Sequence[StageDict], hidden_ms: float) -> list[StageDict]:
    """The stages with hidden tokens as a stage of their own: they delay the first clause."""
    result = []
    for stage in stages:
        if stage["name"] == "first_clause" and hidden_ms > 0:
            hidden = min(hidden_ms, stage["ms"])
            result += [{"name": "thinking", "ms": hidden}]
            stage = {**stage, "ms": stage["ms"] - hidden}
        result.append(dict(stage))
    return result


def engine_share(stages: Sequence[StageDict]) -> tuple[float, float]:
    """(ms the engine was waited for, ms in all)."""
    engine = sum(stage["ms"] for stage in stages if stage["name"] in ENGINE_STAGES)
    return engine, sum(stage["ms"] for stage in stages)


def sentence(stages: Sequence[StageDict]) -> str:
    """What the waterfall says; "" when there is nothing to say."""
    engine, total = engine_share(stages)
    if total <= 0:
        return ""
    share = engine / total
    if share < SMALL:
        judgement = "here it does not matter"
    elif share < LARGE:
        judgement = "it is a part of the wait, not most of it"
    else:
        judgement = "here it matters"
    return f"The engine was {engine:,.0f} of {total:,.0f} ms; {judgement}."


def silence_before(hidden: int, tpot_ms: Mapping[str, float | None]) -> list[tuple[str, str]]:
    """What `hidden` tokens would cost on each engine: [(engine's label, in words)].

    `tpot_ms`: label to the median time per token last measured here, None before there is one.
    """
    return [
        (label, "not measured yet" if tpot is None else f"about {_seconds(hidden * tpot)}")
        for label, tpot in tpot_ms.items()
    ]


def silence_after(metrics: Mapping[str, Any], label: str) -> str:
    """What the hidden tokens of a turn did cost; "" when it had none."""
    hidden = metrics.get("hidden_tokens") or 0
    if not hidden:
        return ""
    ms = metrics["hidden_ms"]
    return f"{label}: {hidden} hidden tokens were {_seconds(ms)} of silence."


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms < 10_000 else f"{ms / 1000:.1f} s"
