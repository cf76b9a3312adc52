"""What the side-by-side view is given: replies as lanes, as JSON. `static/lanes.js` shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ui.race import badge, outcome
from ui.replay import NOTE, published, retime
from ui.trace import Trace
from ui.words import figure

NONE = "-"  # a figure that there is not
AT_PACE = "Replayed together at the pace that was measured; they ran one after the other."


def compared(kind: str, pair: tuple[Trace, Trace], first: int) -> str:
    """Two replies to one prompt. `first` says which of them ran first."""
    same, words = badge(*pair)
    if kind == "again":
        heading, order = "Again, on the other engine", ""
    else:
        heading, order = "The race", f" {pair[first].label} ran first, by lot."
    lanes = [_lane(trace, trace.label, trace.model, figures(trace)) for trace in pair]
    return _value(
        heading,
        AT_PACE + order,
        lanes,
        badge={"same": same, "text": words},
        outcome=outcome(pair).sentence,
        closable=kind == "again",
    )


def hidden_pair(pair: tuple[Trace, Trace]) -> str:
    """A blind trial: only the words and when they came."""
    lanes = [
        {**_lane(trace, name, "", []), "strip": False, "hidden": 0}
        for name, trace in zip("AB", pair, strict=True)
    ]
    return _value("Which wrote faster?", "Replayed at the pace that was measured.", lanes)


def revealed_pair(pair: tuple[Trace, Trace], sentence: str) -> str:
    """The same trial once it was answered."""
    same, words = badge(*pair)
    lanes = [
        _lane(trace, f"{name}: {trace.label}", trace.model, figures(trace))
        for name, trace in zip("AB", pair, strict=True)
    ]
    mark = {"same": same, "text": words}
    return _value("Revealed", AT_PACE, lanes, badge=mark, outcome=sentence)


def dialled(trace: Trace, tokens_per_s: float) -> str:
    """A recorded reply beside itself at another pace."""
    stands_for = published(tokens_per_s)
    about = f"{stands_for.system} ({stands_for.kind})" if stands_for else "a speed of your choice"
    at_ms = retime(trace, tokens_per_s)
    recorded = _lane(trace, f"As recorded on {trace.label}", trace.model, figures(trace))
    shown = [("Replay at", f"{tokens_per_s:,.0f} tokens/s")]
    replayed = _lane(trace, f"Replay at {tokens_per_s:,.0f} tokens/s", about, shown, at_ms)
    source = f" Source: {stands_for.source}." if stands_for else ""
    return _value("Speed dial", NOTE + source, [recorded, replayed])


def figures(trace: Trace) -> list[tuple[str, str]]:
    """The figures below a lane's heading."""
    metrics, tpot = trace.metrics, trace.metrics["tpot_ms"]
    named = (
        ("tokens/s", metrics["tokens_per_s"], ""),
        ("TTFT", metrics["ttft_ms"], " ms"),
        ("TPOT p50", tpot["p50"], " ms"),
        ("p99", tpot["p99"], " ms"),
    )
    return [(name, NONE if value is None else figure(value) + unit) for name, value, unit in named]


def _lane(
    trace: Trace,
    title: str,
    about: str,
    shown: Sequence[tuple[str, str]],
    at_ms: Sequence[float] | None = None,
) -> dict[str, Any]:
    times = [token.at_ms for token in trace.tokens] if at_ms is None else at_ms
    return {
        "title": title,
        "about": about,
        "figures": shown,
        "pieces": [token.text for token in trace.tokens],
        "at_ms": [round(ms, 3) for ms in times],
        "hidden": sum(token.hidden for token in trace.tokens),
        "strip": True,
    }


def _value(
    heading: str,
    note: str,
    lanes: Sequence[dict[str, Any]],
    badge: dict[str, Any] | None = None,
    outcome: str = "",
    closable: bool = False,
) -> str:
    return json.dumps(
        {
            "replay": True,
            "heading": heading,
            "note": note,
            "lanes": lanes,
            "badge": badge,
            "outcome": outcome,
            "closable": closable,
        }
    )
