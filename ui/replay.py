"""The speed dial: a recorded reply at another pace. Always a replay, never a measurement. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.errors import UnpausedError
from ui.trace import Trace

SLOWEST, FASTEST = 1.0, 20_000.0  # tokens/s
NOTE = "A replay of recorded tokens at a chosen pace, not a measurement."


@dataclass(frozen=True)
class PublishedSpeed:
    """A figure of the public debate: tokens/s of one user's decoding, and who says so."""

    tokens_per_s: float
    system: str
    kind: str  # "measured", "claimed" or "calculated", and by whom
    source: str
    url: str


_INFERENCEX = "https://newsletter.semianalysis.com/p/ultra-high-interactivity-on-nvidia"

PUBLISHED = (
    PublishedSpeed(
        170,
        "GLM-5 FP8 on a conventional engine: the baseline that TileRT is set against",
        "claimed: about a third of 500; its configuration is not specified",
        "SemiAnalysis, InferenceX with TileRT, August 2026",
        _INFERENCEX,
    ),
    PublishedSpeed(
        500,
        "GLM-5 FP8 (744B) with TileRT's persistent kernel on eight B200",
        "measured by InferenceX: 494 tokens/s at 1k in, 1k out, batch 1",
        "SemiAnalysis, InferenceX with TileRT, August 2026",
        _INFERENCEX,
    ),
    PublishedSpeed(
        750,
        "GPT-5.6 Sol on Cerebras wafers",
        "claimed by OpenAI: up to 750",
        "OpenAI, Previewing GPT-5.6 Sol, June 2026",
        "https://openai.com/index/previewing-gpt-5-6-sol/",
    ),
    PublishedSpeed(
        1000,
        "GPT-5.3-Codex-Spark on Cerebras WSE-3",
        "claimed by OpenAI: more than 1,000",
        "OpenAI, Introducing GPT-5.3-Codex-Spark, February 2026",
        "https://openai.com/index/introducing-gpt-5-3-codex-spark/",
    ),
    PublishedSpeed(
        3047,
        "GLM-5 NVFP4 on eight B200 if memory bandwidth were the only limit",
        "calculated: 64 TB/s over 21 GB a token; no system is known to reach it",
        "SemiAnalysis, InferenceX with TileRT, August 2026",
        _INFERENCEX,
    ),
)


def check_speed(tokens_per_s: float | None) -> float:
    """`tokens_per_s` if it can be replayed. Raises `UnpausedError`."""
    speed = tokens_per_s if tokens_per_s is not None else math.nan
    if not SLOWEST <= speed <= FASTEST:
        raise UnpausedError(f"choose a speed from {SLOWEST:.0f} to {FASTEST:,.0f} tokens/s")
    return float(speed)


def published(tokens_per_s: float) -> PublishedSpeed | None:
    """The published figure that is exactly this speed, if there is one."""
    return next((speed for speed in PUBLISHED if speed.tokens_per_s == tokens_per_s), None)


def retime(trace: Trace, tokens_per_s: float) -> list[float]:
    """When each token comes at that pace, in ms: evenly, after the recorded time to first token."""
    if not trace.tokens:
        return []
    first_ms, gap_ms = trace.tokens[0].at_ms, 1000 / check_speed(tokens_per_s)
    return [first_ms + number * gap_ms for number in range(len(trace.tokens))]


def replay(trace: Trace, tokens_per_s: float) -> dict[str, Any]:
    """The replay as its export has it: marked, with what the speed stands for."""
    speed = check_speed(tokens_per_s)
    stands_for = published(speed)
    return {
        "replay": True,
        "note": NOTE,
        "tokens_per_s": speed,
        "stands_for": vars(stands_for) if stands_for else None,
        "recorded": trace.as_dict(),
        "replayed_at_ms": [round(ms, 3) for ms in retime(trace, speed)],
    }
