"""What a pass over the weights costs by the number of tokens it verifies, beside one token.

Every draft is made to be right (`benchmarks.planted`), so a pass of width w gives w tokens, and the
passes that did are told by their number of tokens. An engine of one width at a time takes turns
with the same engine without drafts, A B A B, on the same cache.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.planted import RIGHT, Stage
from benchmarks.timing import Reply
from engine.base import DecodeEngine
from engine.models.base import Model
from engine.registry import ENGINES
from engine.sampling import SamplingParams
from engine.speculation import MAX_WIDTH, Speculation

TOKENS, ROUNDS = 48, 2


def pass_costs(
    model: Model, name: str, threads: int, widths: Sequence[int] = range(2, MAX_WIDTH + 1)
) -> list[dict[str, Any]]:
    """[{"width", "ms", "relative", "passes"}], from one token on. A width that the engine never
    chose, as it would not have paid, has None for figures."""
    plain = ENGINES[name].build(model, threads)
    try:
        return list(_costs(model, plain, threads, widths))
    finally:
        plain.close()


def _costs(
    model: Model, plain: DecodeEngine, threads: int, widths: Sequence[int]
) -> Iterator[dict[str, Any]]:
    stage, params = Stage(model, TOKENS), SamplingParams(max_tokens=TOKENS)
    text = stage.reply(plain, stage.nothing(), params).tokens
    singles: list[float] = []
    for width in widths:
        engine = ENGINES[plain.name].build(model, threads, Speculation("ngram", width))
        try:
            before = stage.plant(engine, text, RIGHT * TOKENS, params)
            alone, together = [], []
            for _ in range(ROUNDS):
                alone += durations(stage.reply(plain, stage.nothing(), params), 1)
                together += durations(stage.reply(engine, before, params), width)
        finally:
            engine.close()
        if not singles:
            yield {"width": 1, "ms": _ms(alone), "relative": 1.0, "passes": len(alone)}
        singles += alone
        ratio = statistics.median(together) / statistics.median(alone) if together else None
        yield {
            "width": width,
            "ms": _ms(together),
            "relative": None if ratio is None else round(ratio, 3),
            "passes": len(together),
        }


def durations(reply: Reply, width: int) -> list[float]:
    """Milliseconds of the passes that made `width` tokens certain; tokens of one share a moment."""
    starts = np.flatnonzero(reply.itl_ms > 0)  # the first token of each pass after the prompt's
    sizes = np.diff([*starts, len(reply.itl_ms)])
    return [
        float(reply.itl_ms[at]) for at, size in zip(starts, sizes, strict=True) if size == width
    ]


def _ms(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None
