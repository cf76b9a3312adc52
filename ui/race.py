"""A race between two engines: who runs first, who won, and how to say so. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ui.trace import Trace, first_difference

LEVEL = 0.05  # rates that differ by less are called level: repeated runs differ as much


@dataclass(frozen=True)
class Outcome:
    """`winner` is the index of the faster trace, None when they are level."""

    winner: int | None
    ratio: float  # of the faster rate to the slower; 1 when one could not be told
    sentence: str


def running_order(count: int, coin: int) -> list[int]:
    """In which order `count` lanes run, by a random number.

    They run one after the other, for they share the device; whoever comes second finds it warm.
    """
    start = coin % count
    return [(start + place) % count for place in range(count)]


def outcome(traces: Sequence[Trace]) -> Outcome:
    """Who wrote faster, by tokens per second: answers may differ in length."""
    one, other = traces
    slow, fast = sorted((one.rate, other.rate))
    if slow <= 0:
        return Outcome(None, 1.0, "One of them said too little to be timed.")
    ratio = fast / slow
    if ratio < 1 + LEVEL:
        return Outcome(None, ratio, f"{one.label} and {other.label} were level.")
    winner = 0 if one.rate > other.rate else 1
    first, second = traces[winner], traces[1 - winner]
    times = f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"
    sentence = f"{first.label} wrote {times} times as fast as {second.label}"
    if first.answer == second.answer:
        ahead_ms = second.end_ms - first.end_ms
        when = "sooner" if ahead_ms >= 0 else "later"
        sentence += f" and was done {_duration(abs(ahead_ms))} {when}"
    return Outcome(winner, ratio, sentence + ".")


def badge(one: Trace, other: Trace) -> tuple[bool, str]:
    """(whether the tokens are identical, that in words)."""
    number = first_difference(one, other)
    if number is None:
        return True, f"Identical: all {len(one.spoken_ids)} tokens are the same"
    for trace in (one, other):
        if trace.metrics["finish_reason"] == "stopped" and number == len(trace.spoken_ids):
            return True, f"Identical as far as it went: {number} tokens, then it was stopped"
    return False, f"The tokens differ from number {number + 1} on"


def _duration(ms: float) -> str:
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms"
