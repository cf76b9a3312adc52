"""How the time per token grows with context and with sampling.

Long contexts are caches filled with seeded noise, not prompts that were processed: decoding reads
the same bytes whatever they say, and nobody waits for 8,000 tokens of prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.timing import EngineSide, Reply, Side, in_turn, medians, timed
from engine.base import DecodeEngine
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams

TOKENS, ROUNDS = 32, 2
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 1}


class _AtContext:
    """An engine on a cache of `context` positions of noise."""

    def __init__(self, engine: DecodeEngine, cache: KVCache, context: int) -> None:
        self.name, self._engine, self._cache, self._context = engine.name, engine, cache, context

    def first_token_ms(self) -> float:
        raise NotImplementedError("a cache of noise has no prompt")

    def reply(self, params: SamplingParams) -> Reply:
        self._cache.token_ids = [0] * (self._context - 1)
        return timed(self._engine, self._cache, 0, params)


def noise_cache(model: Model, positions: int) -> KVCache:
    """A cache of seeded noise, about as large as keys and values are."""
    cache = model.new_cache(positions)
    generator = torch.Generator(model.device).manual_seed(0)
    for tensor in (cache.k, cache.v):
        tensor.normal_(0, 0.5, generator=generator)
    return cache


def possible_contexts(model: Model, contexts: Sequence[int], tokens: int = TOKENS) -> list[int]:
    """`contexts` cut to what `model` can hold with `tokens` after them; sorted, each once."""
    longest = model.config.max_positions - tokens
    if longest < 2:
        raise UnpausedError(f"{model.name} holds {model.config.max_positions} positions: too few")
    return sorted({min(context, longest) for context in contexts})


def by_context(
    model: Model, engines: Sequence[DecodeEngine], contexts: Sequence[int]
) -> dict[str, list[dict[str, float]]]:
    """Each engine's TPOT at each context: greedy, a few tokens, two rounds in turn."""
    found: dict[str, list[dict[str, float]]] = {engine.name: [] for engine in engines}
    wanted = possible_contexts(model, contexts)
    cache = noise_cache(model, wanted[-1] + TOKENS)
    for context in wanted:
        sides: list[Side] = [_AtContext(engine, cache, context) for engine in engines]
        for name, replies in in_turn(sides, SamplingParams(max_tokens=TOKENS), ROUNDS).items():
            found[name].append({"context": context, "tpot_p50_ms": _p50(replies)})
    return found


def by_sampling(sides: Sequence[EngineSide]) -> dict[str, dict[str, float]]:
    """Each engine's TPOT greedy and with temperature and top-p, on the same prompt."""
    kinds: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": SAMPLED}
    found: dict[str, dict[str, float]] = {side.name: {} for side in sides}
    for kind, sampling in kinds.items():
        params = SamplingParams(**sampling, max_tokens=2 * TOKENS)
        for name, replies in in_turn(sides, params, ROUNDS).items():
            found[name][f"{kind}_tpot_p50_ms"] = _p50(replies)
    return found


def _p50(replies: Sequence[Reply]) -> float:
    return medians([float(np.median(reply.itl_ms)) for reply in replies])[0]
