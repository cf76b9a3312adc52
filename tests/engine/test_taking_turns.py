"""Two engines in turn: the text is one engine's, whoever decodes which part of it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import pytest

from engine.base import DecodeRun, Token
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.speculation import Speculation, look_up
from engine.taking_turns import BEGIN, END, WORTH_A_TURN, Foretold, TurnTakingRun
from tests.engine.tiny import random_ids

LOOP = [5, 9, 2, 7, 3, 8] * 4


@pytest.fixture(scope="module")
def model(llama: Model) -> Model:
    return llama


@pytest.fixture(scope="module")
def engines(model: Model) -> Iterator[tuple[EagerEngine, EagerEngine]]:
    alone, drafting = EagerEngine(model), EagerEngine(model, speculation=Speculation("ngram", 4))
    yield alone, drafting
    alone.close()
    drafting.close()


def test_what_is_foretold_is_what_the_look_up_finds() -> None:
    rng = random.Random(1)
    text = [rng.randrange(4) for _ in range(300)]
    seen, share = Foretold(text[:20]), 0.0
    for at in range(20, 300):
        guess = look_up(text[:at], 1)
        share += ((guess == [text[at]]) - share) / 8
        seen.saw(text[at])
        assert seen.share == pytest.approx(share)


class Pair:
    """A run over two engines that notes who decoded how many tokens."""

    def __init__(
        self, engines: tuple[EagerEngine, EagerEngine], cache: KVCache, prompt: list[int],
        params: SamplingParams,
    ) -> None:  # fmt: skip
        alone, drafting = engines
        self.run = TurnTakingRun(alone.decode, drafting.decode, cache, prompt, params)

    def tokens(self) -> list[Token]:
        return list(self.run)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.9, "seed": 4}, {"temperature": 0.7, "top_p": 0.8, "seed": 9}]
)
def test_the_text_is_that_of_one(
    model: Model, engines: tuple[EagerEngine, EagerEngine], options: dict[str, float]
) -> None:
    params = SamplingParams(max_tokens=90, **options)  # type: ignore[arg-type]
    expected = [t.id for t in engines[0].decode(model.new_cache(), LOOP, params)]
    cache = model.new_cache()
    pair = Pair(engines, cache, LOOP, params)
    got = pair.tokens()
    assert [t.id for t in got] == expected and pair.run.finish_reason == "length"
    assert cache.token_ids == [*LOOP, *expected[:-1]]
    times = [t.time_ns for t in got]
    assert times == sorted(times) and pair.run.start_ns <= times[0]
    assert pair.run.prefill_end_ns is not None


def planted(engine: EagerEngine, prompt: list[int], reply: list[int]) -> KVCache:
    """The cache after `prompt`, whose list says instead something in which `reply` is found."""
    cache = engine.model.new_cache()
    engine.prefill(cache, prompt[:-1])
    held = [prompt[-1], *reply]
    cache.token_ids[len(prompt) - 1 - len(held) :] = held
    return cache


def test_turns_change_where_the_text_says_so(
    model: Model, engines: tuple[EagerEngine, EagerEngine]
) -> None:
    """Forty tokens can be foretold, and then no more; the text stays the one of one engine."""
    prompt = random_ids(100, seed=3)
    params = SamplingParams(max_tokens=90, temperature=1.0, seed=6)
    whole = [t.id for t in engines[0].decode(model.new_cache(), prompt, params)]
    cache = planted(engines[0], prompt, whole[:50])
    seen, turn, turns = Foretold([*cache.token_ids, prompt[-1], whole[0]]), 1, 1
    for token in whole[1 : 1 - WORTH_A_TURN]:
        seen.saw(token)
        if seen.share > BEGIN if turn else seen.share < END:
            turn, turns = 1 - turn, turns + 1
    assert turns == 3
    pair = Pair(engines, cache, prompt[-1:], params)
    assert [t.id for t in pair.tokens()] == whole and pair.run.turns == turns
    drafts = pair.run.drafts
    assert drafts is not None
    assert drafts.passes + drafts.accepted >= len(whole) - 1


def test_a_turn_that_cannot_begin_ends_the_reply(
    model: Model, engines: tuple[EagerEngine, EagerEngine]
) -> None:
    """The cache holds what has been yielded, the fault is told once, and nothing comes after it."""

    def refused(cache: KVCache, token_ids: Sequence[int], params: SamplingParams) -> DecodeRun:
        raise UnpausedError("no drafts today")

    prompt = random_ids(100, seed=3)
    params = SamplingParams(max_tokens=90, temperature=1.0, seed=6)
    whole = [t.id for t in engines[0].decode(model.new_cache(), prompt, params)]
    cache = planted(engines[0], prompt, whole[:50])
    before, got = list(cache.token_ids), list[int]()
    run = TurnTakingRun(engines[0].decode, refused, cache, prompt[-1:], params)
    with pytest.raises(UnpausedError, match="no drafts today"):
        got.extend(token.id for token in run)
    assert list(run) == [] and run.finish_reason == "stopped" and run.turns == 1
    assert cache.token_ids[len(before) :] == [prompt[-1], *whole[: cache.length - len(before) - 1]]
    assert run.drafts is not None and run.drafts.passes == cache.length - len(before) - 1


def test_stop_in_any_turn(model: Model, engines: tuple[EagerEngine, EagerEngine]) -> None:
    params = SamplingParams(max_tokens=80)
    whole = [t.id for t in engines[0].decode(model.new_cache(), LOOP, params)]
    for at in (1, 5, 20, 60):
        cache, got = model.new_cache(), []
        pair = Pair(engines, cache, LOOP, params)
        for token in pair.run:
            got.append(token.id)
            if len(got) == at:
                pair.run.stop()
        assert got == whole[:at] and pair.run.finish_reason == "stopped"
        assert cache.token_ids == [*LOOP, *whole[: at - 1]]


def test_a_reply_ends_where_it_would(
    model: Model, engines: tuple[EagerEngine, EagerEngine]
) -> None:
    params = SamplingParams(max_tokens=60)
    whole = [t.id for t in engines[0].decode(model.new_cache(), LOOP, params)]
    first = {token: whole.index(token) for token in whole}
    for token, at in first.items():
        stops = dataclasses.replace(params, stop_ids=frozenset({token}))
        pair = Pair(engines, model.new_cache(), LOOP, stops)
        assert [t.id for t in pair.tokens()] == whole[: at + 1]
        assert pair.run.finish_reason == "eos"
    for room in (1, 7, 30):
        pair = Pair(engines, model.new_cache(len(LOOP) + room), LOOP, params)
        assert [t.id for t in pair.tokens()] == whole[: room + 1]
        assert pair.run.finish_reason == "context"
