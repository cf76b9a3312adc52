"""The CPU engine drafts by itself: the text is the one without drafts, wherever a reply ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import mailbox as mb
from engine.base import Token
from engine.conversation import Conversation
from engine.cpu import PersistentCpuEngine
from engine.errors import UnpausedError
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.speculation import MAX_CONTEXT, MAX_WIDTH, Pace, Speculation, look_up
from engine.weights import load_model
from kernels import cpu_speculation as twins
from tests.engine.conftest import TinyFactory
from tests.engine.tiny import VOCAB, poison, random_ids

LOOP = [5, 6, 7, 8] * 8
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"temperature": 0.7},
    {"temperature": 0.5, "top_k": 5, "repetition_penalty": 1.1},
    {"temperature": 0.6, "top_p": 0.8, "min_p": 0.02},
]


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
    widths = set()
    for step in range(3000):
        if step % 50 == 0:
            pace.new_reply()
            twins.pace_new_reply(numbers)
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


@pytest.mark.parametrize("at", range(1, 17))
def test_ends_in_the_middle_of_a_pass(
    plain: PersistentCpuEngine, drafting: PersistentCpuEngine, at: int
) -> None:
    """Stop ids, a token limit and a full cache end a reply at the same token as without drafts."""
    ids = [token.id for token in reply(plain, LOOP, SamplingParams(max_tokens=60))[0]]
    stop = ids[30 + at]
    for params, positions in (
        (SamplingParams(max_tokens=60, stop_ids=[stop]), None),
        (SamplingParams(max_tokens=30 + at), None),
        (SamplingParams(max_tokens=60), len(LOOP) + 30 + at),
    ):
        expected, before, held = reply(plain, LOOP, params, positions)
        tokens, run, cache = reply(keen(drafting), LOOP, params, positions)
        assert [token.id for token in tokens] == [token.id for token in expected]
        assert run.finish_reason == before.finish_reason
        assert cache.token_ids == held.token_ids
        if cache.free:  # drafts that were wrong have left nothing that is read
            turn, some = [5], SamplingParams(max_tokens=9)
            rest = [token.id for token in plain.decode(held, turn, some)]
            assert [token.id for token in drafting.decode(cache, turn, some)] == rest


def test_stopped_in_the_middle_of_a_pass(
    plain: PersistentCpuEngine, drafting: PersistentCpuEngine
) -> None:
    params = SamplingParams(max_tokens=120)
    ids = [token.id for token in reply(plain, LOOP, params)[0]]
    for count in (1, 2, 40, 43, 71):
        cache = poison(drafting.model.new_cache())
        run = keen(drafting).decode(cache, LOOP, params)
        got = []
        for token in run:
            got.append(token.id)
            if len(got) == count:
                stopper = threading.Thread(target=run.stop)
                stopper.start()
                stopper.join(60)
        assert got == ids[:count] and run.finish_reason == "stopped"
        assert cache.token_ids == [*LOOP, *ids[: count - 1]]
        rest = drafting.decode(cache, ids[count - 1 : count], SamplingParams(max_tokens=30))
        assert [token.id for token in rest] == ids[count : count + 30]


def test_turns_on_one_cache(plain: PersistentCpuEngine, drafting: PersistentCpuEngine) -> None:
    """Drafts are looked up in what earlier turns said, too."""
    mine, theirs = poison(drafting.model.new_cache()), poison(plain.model.new_cache())
    params = SamplingParams(max_tokens=40)
    accepted = 0
    for turn in range(4):
        said = [*LOOP[:12], turn]
        run = keen(drafting).decode(mine, said, params)
        expected = [token.id for token in plain.decode(theirs, said, params)]
        assert [token.id for token in run] == expected
        assert mine.token_ids == theirs.token_ids
        accepted += run.drafts.accepted if run.drafts else 0
    assert accepted > 0


@pytest.mark.parametrize("options", SAMPLERS)
@pytest.mark.parametrize("right", range(8))
def test_a_draft_of_the_host_is_verified_in_one_pass(
    plain: PersistentCpuEngine, options: dict[str, Any], right: int
) -> None:
    """The first `right` of seven tokens are as they should be."""
    params = SamplingParams(max_tokens=20, seed=5, **options)
    prompt = random_ids(13)
    ids = [(token.id, token.logprob) for token in reply(plain, prompt, params)[0]]
    draft = [token_id for token_id, _ in ids[:7]]
    draft[right:] = [(token_id + 1) % VOCAB for token_id in draft[right:]]
    for known in (prompt, prompt[-1:]):
        cache = poison(plain.model.new_cache())
        plain.prefill(cache, prompt[: len(prompt) - len(known)])
        assert plain.verify(cache, known, draft, params) == ids[: right + 1]
        assert cache.token_ids == prompt


def test_a_draft_model(model: Model, plain: PersistentCpuEngine, tiny_of: TinyFactory) -> None:
    """The same model drafts what it would say; another of the same vocabulary is mostly wrong."""
    for drafter in (model, tiny_of("llama").model):
        engine = PersistentCpuEngine(model, speculation=Speculation("draft", 5, drafter))
        for options in SAMPLERS[:3]:
            params = SamplingParams(max_tokens=40, seed=2, **options)
            expected, _, _ = reply(plain, LOOP, params)
            tokens, run, cache = reply(engine, LOOP, params)
            assert [(t.id, t.logprob) for t in tokens] == [(t.id, t.logprob) for t in expected]
            assert cache.token_ids == [*LOOP, *(token.id for token in tokens[:-1])]
            counts = run.drafts
            assert counts is not None and counts.passes + counts.accepted == 39
            assert (counts.accepted == counts.drafted) == (drafter is model)
        engine.close()
        with pytest.raises(UnpausedError, match="closed"):
            engine.decode(model.new_cache(), [1], SamplingParams())


def test_the_anatomy_is_that_of_passes_of_one_token(drafting: PersistentCpuEngine) -> None:
    params = SamplingParams(max_tokens=100)
    for _ in range(50):  # a tiny model's reply may be over before a busy machine has looked once
        with suppress(UnpausedError):
            profile = keen(drafting).measure_stages(drafting.model.new_cache(), LOOP, params)
            break
    assert profile.tokens == 99
    assert drafting.resident.words[mb.PASSES] == 0 and drafting.resident.words[mb.WIDTH] > 1


COPY = (
    "Correct the spelling and repeat the whole text: The lighthouse stands on the northern clif "
    "of the island. The lighthouse was built in 1874 by fishermen of the island. The lighthouse "
    "of the island is white and red."
)


@pytest.mark.real
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.8, "top_k": 40, "min_p": 0.05},
     {"temperature": 0.5, "repetition_penalty": 1.05}],
)  # fmt: skip
def test_real_text_is_the_one_without_drafts(
    smollm2_pair: tuple[PersistentCpuEngine, PersistentCpuEngine], options: dict[str, Any]
) -> None:
    params, replies = SamplingParams(max_tokens=90, seed=7, **options), []
    for engine in smollm2_pair:
        stream = Conversation(engine.model, 512).reply(engine, COPY, params)
        replies.append([(d.token.id, d.token.logprob) for d in stream if d.token])
    assert replies[0] == replies[1]
    assert smollm2_pair[1].resident.words[mb.ACCEPTED] > 0


@pytest.fixture(scope="module")
def smollm2_pair(
    smollm2_path: Path,
) -> Iterator[tuple[PersistentCpuEngine, PersistentCpuEngine]]:
    """The real weights, in their integer blocks: without drafts and with."""
    model = load_model(smollm2_path, dtype=torch.bfloat16)
    pair = PersistentCpuEngine(model), PersistentCpuEngine(model, None, Speculation("ngram"))
    yield pair
    for engine in pair:
        engine.close()
