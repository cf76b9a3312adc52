"""The CPU engine drafts by itself: the text is the one without drafts, wherever a reply ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.base import Token
from engine.cpu import PersistentCpuEngine
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.speculation import MAX_CONTEXT, MAX_WIDTH, Pace, Speculation, look_up
from kernels import cpu_speculation as twins
from tests.engine.conftest import TinyFactory
from tests.engine.tiny import poison

LOOP = [5, 6, 7, 8] * 8
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"temperature": 0.7},
    {"temperature": 0.5, "top_k": 5, "repetition_penalty": 1.1},
    {"temperature": 0.6, "top_p": 0.8, "min_p": 0.02},
]
KEEN = [1.0, *([1.0] * MAX_WIDTH)]  # a pace that always drafts all it can: passes cost the same


@pytest.fixture(scope="module")
def model(tiny_of: TinyFactory) -> Model:
    """Nine heads over three, float32."""
    return tiny_of("smollm2").model


@pytest.fixture(scope="module")
def plain(model: Model) -> Iterator[PersistentCpuEngine]:
    engine = PersistentCpuEngine(model)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def drafting(model: Model) -> Iterator[PersistentCpuEngine]:
    engine = PersistentCpuEngine(model, speculation=Speculation("ngram"))
    yield engine
    engine.close()


def keen(engine: PersistentCpuEngine) -> PersistentCpuEngine:
    """The engine, told that passes of every width cost the same."""
    engine.resident.shared.pace[1:] = 1.0
    return engine


def contexts() -> Iterator[list[int]]:
    """Random ones of few tokens, loops, and long ones that end as they began."""
    chance = random.Random(0)
    for length in [*range(12), *(chance.randrange(300) for _ in range(150))]:
        yield [chance.randrange(chance.choice((2, 5, 30))) for _ in range(length)]
    for period in (1, 2, 3, 7):
        yield [at % period for at in range(40)]
    far = [chance.randrange(10**6) for _ in range(MAX_CONTEXT + 40)]
    for at in (0, 38, 39, 40, 41, 42, 50):
        yield [*far[: at + 4], *far[at + 4 :], *far[at : at + 4]]


def test_the_twin_of_look_up() -> None:
    found = 0
    for context in contexts():
        for count in (1, 3, 7):
            held = np.array([*context, *([-1] * count)], dtype=np.int64)
            drafted = twins.look_up(held, len(context), count)
            expected = look_up(context, count)
            assert held[len(context) :].tolist()[:drafted] == expected
            found += drafted > 0
    assert found > 100


@pytest.mark.parametrize("widest", [2, 5, MAX_WIDTH])
def test_the_twin_of_pace(widest: int) -> None:
    chance, pace = random.Random(widest), Pace(widest)
    numbers = np.zeros(twins.PACE_NUMBERS)
    pace.new_reply()
    twins.pace_new_reply(numbers)
    widths = set()
    for _ in range(3000):
        drafted = chance.randrange(MAX_WIDTH)
        width = pace.width(drafted)
        assert twins.pace_width(numbers, drafted, widest) == width
        widths.add(width)
        accepted, rejected = chance.randrange(width), chance.random() < 0.3
        cost = chance.uniform(0.8, 1.2) * (5 + width) * chance.choice((1, 1, 1, 10))
        pace.saw(accepted, rejected)
        pace.took(width, cost)
        twins.pace_saw(numbers, accepted, rejected)
        twins.pace_took(numbers, width, cost)
    assert len(widths) > 1


@pytest.mark.parametrize("options", SAMPLERS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_text_is_the_one_without_drafts(
    plain: PersistentCpuEngine, drafting: PersistentCpuEngine, options: dict[str, Any], seed: int
) -> None:
    """To the last bit of every log-probability: the width of a pass changes no sum."""
    params = SamplingParams(max_tokens=120, seed=seed, **options)
    expected, _, _ = reply(plain, LOOP, params)
    tokens, run, cache = reply(keen(drafting), LOOP, params)
    assert [(t.id, t.logprob) for t in tokens] == [(t.id, t.logprob) for t in expected]
    assert cache.token_ids == [*LOOP, *(token.id for token in tokens[:-1])]
    counts = run.drafts
    assert counts is not None and counts.passes + counts.accepted == 119
    assert counts.drafted > 0 and (counts.accepted > 0 or "repetition_penalty" in options)
    assert run.launches == 1
    times = [token.time_ns for token in tokens]
    assert times == sorted(times) and len(set(times)) == counts.passes + 1


def reply(
    engine: PersistentCpuEngine,
    prompt: list[int],
    params: SamplingParams,
    positions: int | None = None,
) -> tuple[list[Token], Any, KVCache]:
    cache = poison(engine.model.new_cache(positions))
    run = engine.decode(cache, prompt, params)
    return list(run), run, cache
