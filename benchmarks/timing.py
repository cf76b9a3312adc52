"""Replies timed by the engines' own clocks, in turn, and what they come to.

Whoever is timed is a `Side`. Sides take turns (A B A B), so that a machine that warms up, throttles
or is disturbed does it to all of them; every figure is a median over rounds with its spread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engine.base import DecodeEngine, DraftCounts
from engine.kv_cache import KVCache
from engine.sampling import SamplingParams

_COOL_DOWN_S = 0.1  # others' threads come to rest


@dataclass(frozen=True)
class Reply:
    """One timed reply. `itl_ms`: float64 [tokens - 1]."""

    tokens: list[int]
    itl_ms: np.ndarray
    launches_per_token: float | None
    drafts: DraftCounts | None = None

    @property
    def tokens_per_s(self) -> float:
        """As engine/metrics.py defines it."""
        return 1e3 / float(self.itl_ms.mean())


class Side(Protocol):
    """One contestant on one prompt."""

    name: str

    def first_token_ms(self) -> float:
        """Process the whole prompt from nothing and sample one token; TTFT in milliseconds."""
        ...

    def reply(self, params: SamplingParams) -> Reply:
        """Decode after the prompt, whose keys and values are already there."""
        ...


class EngineSide:
    """An engine of the registry. Replies start from `cache`, which all sides share.

    `name` tells sides of one engine apart.
    """

    def __init__(
        self, engine: DecodeEngine, cache: KVCache, prompt: Sequence[int], name: str = ""
    ) -> None:
        self.name, self.engine = name or engine.name, engine
        self._cache, self._prompt = cache, list(prompt)
        self._scratch = engine.model.new_cache(len(prompt) + 1)

    def first_token_ms(self) -> float:
        self._scratch.truncate(0)
        run = self.engine.decode(self._scratch, self._prompt, SamplingParams(max_tokens=1))
        (token,) = run
        return (token.time_ns - run.start_ns) / 1e6

    def reply(self, params: SamplingParams) -> Reply:
        self._cache.truncate(len(self._prompt) - 1)
        return timed(self.engine, self._cache, self._prompt[-1], params)


def timed(engine: DecodeEngine, cache: KVCache, token_id: int, params: SamplingParams) -> Reply:
    """Decode from `token_id`, which comes after what `cache` holds."""
    run = engine.decode(cache, [token_id], params)
    tokens = list(run)
    times = np.array([token.time_ns for token in tokens], dtype=np.int64)
    ids, launches = [token.id for token in tokens], run.launches / len(tokens)
    return Reply(ids, np.diff(times) / 1e6, launches, run.drafts)


class SideFailed(Exception):
    """One side could not finish; the others are not to blame."""

    def __init__(self, side: str, error: Exception) -> None:
        super().__init__(f"{side}: {error}")
        self.side, self.error = side, error


@contextmanager
def blaming(side: Side) -> Iterator[None]:
    """Name the side whose work failed, whatever failed: PyTorch's and Triton's faults are many."""
    try:
        yield
    except Exception as error:
        raise SideFailed(side.name, error) from error


def in_turn(
    sides: Sequence[Side], params: SamplingParams, rounds: int, warm: bool = False
) -> dict[str, list[Reply]]:
    """Every side's replies, one each a round, after a whole round that is not counted.

    A whole one, since what compiling and profiling leave behind slowed one engine's first hundred
    tokens to a third of its speed on a GPU. `warm`: there was one already.
    """
    replies: dict[str, list[Reply]] = {side.name: [] for side in sides}
    for number in range(int(warm), rounds + 1):
        for side in sides:
            time.sleep(_COOL_DOWN_S)
            with blaming(side):
                reply = side.reply(params)
            if number:
                replies[side.name].append(reply)
    return replies


def first_tokens(sides: Sequence[Side], rounds: int) -> dict[str, list[float]]:
    """Every side's TTFTs in milliseconds, in turn, after one that is not counted."""
    found: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds + 1):
        for side in sides:
            with blaming(side):
                ttft_ms = side.first_token_ms()
            if number:
                found[side.name].append(ttft_ms)
    return found


def medians(values: Sequence[float], digits: int = 4) -> tuple[float, list[float]]:
    """(median, all values), rounded."""
    return round(statistics.median(values), digits), [round(value, digits) for value in values]


def figures(
    replies: Sequence[Reply], ttfts_ms: Sequence[float], read_bytes: float | None, ceiling: float
) -> dict[str, Any]:
    """What one side's rounds come to.

    `read_bytes`: what decoding one token has to read at least, or None where that is not known;
    `ceiling`: measured bytes/s. A share is read_bytes / (time x ceiling).
    """
    pooled = np.concatenate([reply.itl_ms for reply in replies])
    p50, p50s = medians([float(np.median(reply.itl_ms)) for reply in replies])
    ttft, ttfts = medians(ttfts_ms, 2)
    rate, _ = medians([reply.tokens_per_s for reply in replies], 2)
    p99 = round(float(np.percentile(pooled, 99)), 4)
    found: dict[str, Any] = {
        "rounds": len(replies),
        "tokens_a_round": len(replies[0].tokens),
        "tpot_p50_ms": p50,
        "tpot_p50_of_rounds_ms": p50s,
        "tpot_p99_ms": p99,
        "tokens_per_s": rate,
        "ttft_ms": ttft,
        "ttft_of_rounds_ms": ttfts,
        "launches_per_token": rounded(replies[0].launches_per_token),
    }
    if read_bytes is not None:
        floor_ms = read_bytes / ceiling * 1e3
        found |= {
            "read_bytes_per_token": round(read_bytes),
            "floor_ms": round(floor_ms, 4),
            "share_of_ceiling": {
                "p50": round(floor_ms / p50, 4),
                "p99": round(floor_ms / p99, 4),
                "tokens_per_s": round(floor_ms * rate / 1e3, 4),
            },
        }
    return found


def rounded(value: float | None, digits: int = 3) -> float | None:
    """`value` rounded, None left alone."""
    return None if value is None else round(value, digits)
