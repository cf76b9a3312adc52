"""How the page words what the parts report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ui.figures import drafts


def sentence(text: str) -> str:
    """A one-line fault, as commands print it, as a sentence."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".")


def waiting(position: int, wait_s: float | None) -> str:
    """The place in the queue, as `static/status.js` has it: `position` turns come before."""
    before = "1 turn is" if position == 1 else f"{position} turns are"
    about = "" if wait_s is None else f", about {max(1, round(wait_s))} s"
    return f"Waiting: {before} before yours{about}"


def left_out(turns: int) -> str:
    """That the context is full, and what was forgotten for the reply above."""
    what = "the oldest turn was" if turns == 1 else f"the oldest {turns} turns were"
    return f"*The context is full: {what} left out.*"


def answer_label(metrics: Mapping[str, Any], engine: str) -> str:
    """The line below an answer: engine, model, tokens/s, TTFT, and why it ended if not by itself.

    `metrics` are `ReplyMetrics.as_dict()`, `engine` the engine's name for people.
    """
    parts = [engine, str(metrics["model"])]
    if metrics["tokens_per_s"] is not None:
        parts.append(f"{figure(metrics['tokens_per_s'])} tokens/s")
    if metrics["ttft_ms"] is not None:
        parts.append(f"TTFT {figure(metrics['ttft_ms'])} ms")
    if metrics["speculation"]:
        parts.append(drafts(metrics["speculation"]))
    if metrics["hidden_tokens"]:
        parts.append(f"after {metrics['hidden_tokens']} hidden tokens")
    spoken = metrics["tokens"] - metrics["hidden_tokens"]
    if metrics["finish_reason"] == "length":
        parts.append(f"cut at the limit of {spoken} tokens")
    elif metrics["finish_reason"] == "context":
        parts.append("cut because the context is full")
    return " · ".join(parts)


def figure(value: float) -> str:
    """A number with three figures or so: "0.61", "12.3", "3,047"."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
