"""Drafts on the device change how fast the engine `triton` is, never its text. Interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine import device_drafts
from engine.base import Token
from engine.device_drafts import DraftedDeviceRun
from engine.eager import EagerEngine
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.speculation import Pace, Speculation
from engine.triton_engine import TritonEngine
from kernels.tuning import ColumnTile, Tile, Tuning
from tests.engine.tiny import poison
from tests.kernels.triton_workspace import config, model_of, needs_triton

pytestmark = needs_triton
PROMPT = [5, 10, 11, 12, 13, 14, 10, 11, 12]
SHAPE = config(hidden=64, intermediate=96, heads=3, kv_heads=1, head_dim=16, tied=False)


class SteadyPace(Pace):
    """Passes of every width are told to cost the same: the clock of a test says nothing."""

    def took(self, width: int, cost: float) -> None:
        super().took(width, 1.0)


class DearPace(Pace):
    """A pass costs as much as its tokens decoded one by one: drafts never pay."""

    def took(self, width: int, cost: float) -> None:
        super().took(width, float(width))


@pytest.fixture(scope="module")
def looping() -> Model:
    """After each token comes its neighbour among five, but for a little: it repeats itself."""
    model = model_of(SHAPE)
    w = model.weights
    w.o.mul_(0.05)
    w.down.mul_(0.05)
    ids = torch.arange(SHAPE.vocab)
    w.lm_head[ids - ids % 5 + (ids + 1) % 5] = w.embed
    return model


@pytest.fixture(scope="module")
def ngram(looping: Model) -> Iterator[TritonEngine]:
    yield from engine_on(looping, Speculation("ngram", 8))


@pytest.fixture(scope="module")
def drafted(looping: Model) -> Iterator[TritonEngine]:
    yield from engine_on(looping, Speculation("draft", 4, looping))


def engine_on(model: Model, speculation: Speculation) -> Iterator[TritonEngine]:
    from kernels import column_layers

    tile = Tile(128, 64, 4)
    tuning = Tuning(tile, tile, tile, tile, tile, 2, 32, 4, 0, 1)
    with pytest.MonkeyPatch.context() as patch:  # few programs: each costs milliseconds
        patch.setattr(column_layers, "column_tile", lambda *_: ColumnTile(128, 64, 4))
        engine = TritonEngine(model, tuning=tuning, speculation=speculation)
        assert engine._passes is not None
        engine._passes.pace = SteadyPace(speculation.width)
        yield engine
        engine.close()


def plain(model: Model, params: SamplingParams, positions: int | None = None) -> list[Token]:
    return list(EagerEngine(model).decode(model.new_cache(positions), PROMPT, params))


def check(engine: TritonEngine, params: SamplingParams, positions: int | None = None) -> Any:
    """The reply is the one without drafts, and the cache holds what was fed; the run."""
    expected = plain(engine.model, params, positions)
    cache = poison(engine.model.new_cache(positions))
    run = engine.decode(cache, PROMPT, params)
    tokens = list(run)
    ids = [token.id for token in expected]
    assert [token.id for token in tokens] == ids
    assert [t.logprob for t in tokens] == pytest.approx([t.logprob for t in expected], abs=1e-3)
    assert cache.token_ids == [*PROMPT, *ids[:-1]]
    assert not cache.k[:, :, : cache.length].isnan().any()
    times = [token.time_ns for token in tokens]
    assert times == sorted(times) and isinstance(run, DraftedDeviceRun)
    return run


def test_a_repeating_text_takes_few_passes(ngram: TritonEngine) -> None:
    run = check(ngram, SamplingParams(max_tokens=17))
    assert run.finish_reason == "length"
    passes, accepted = run.drafts.passes, run.drafts.accepted
    assert passes <= 4 and passes + accepted == 16 and run.drafts.drafted == accepted
    # One column: five a layer, head, verdict. Several: embed, six a layer, head, scores, verdict.
    assert 7 * (passes + 1) < run.launches <= 7 + 10 * passes


@pytest.mark.parametrize(
    "values",
    [{"temperature": 0.7, "repetition_penalty": 1.2}, {"temperature": 1.0, "min_p": 0.05}],
    ids=str,
)
def test_sampled_text_is_kept(ngram: TritonEngine, values: dict[str, Any]) -> None:
    check(ngram, SamplingParams(max_tokens=6, seed=4, **values))


@pytest.mark.parametrize("values", [{}, {"temperature": 0.8, "repetition_penalty": 1.3}], ids=str)
def test_the_same_model_drafts_what_it_would_say(
    drafted: TritonEngine, values: dict[str, Any]
) -> None:
    run = check(drafted, SamplingParams(max_tokens=7, seed=9, **values))
    assert run.drafts.accepted == run.drafts.drafted > 0 and run.drafts.passes <= 3


def test_a_model_that_does_not_pay_is_asked_again(
    looping: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_drafts, "_LOOK_AGAIN", 3)
    for engine in engine_on(looping, Speculation("draft", 2, model_of(SHAPE, seed=7))):
        assert engine._passes is not None
        engine._passes.pace = DearPace(2)
        run = check(engine, SamplingParams(max_tokens=8))
        assert run.drafts.passes + run.drafts.accepted == 7
        assert run.drafts.accepted <= run.drafts.drafted and 0 < run.drafts.drafted <= 4


def test_ends_in_the_middle_of_a_pass(ngram: TritonEngine) -> None:
    """Stop ids, a full cache and a stop end a reply at the same token as without drafts."""
    ids = [token.id for token in plain(ngram.model, SamplingParams(max_tokens=20))]
    run = check(ngram, SamplingParams(max_tokens=40, stop_ids=[ids[3]]))
    assert run.finish_reason == "eos"
    run = check(ngram, SamplingParams(max_tokens=40), positions=len(PROMPT) + 4)
    assert run.finish_reason == "context"
    cache: KVCache = ngram.model.new_cache()
    run = ngram.decode(cache, PROMPT, SamplingParams(max_tokens=40))
    got = []
    for token in run:
        got.append(token.id)
        if len(got) == 6:
            run.stop()
    assert got == ids[:6] and run.finish_reason == "stopped"
    assert cache.token_ids == [*PROMPT, *ids[:5]]
    # What passes launched ahead left behind is not read: the cache goes on where it was left.
    more = ngram.decode(cache, [ids[5]], SamplingParams(max_tokens=3))
    assert [token.id for token in more] == ids[6:9]


def test_two_replies_in_turn_do_not_disturb_each_other(drafted: TritonEngine) -> None:
    engine = drafted
    prompts, params = (PROMPT, [8, 9, 10]), SamplingParams(max_tokens=3)
    alone = [
        [t.id for t in EagerEngine(engine.model).decode(engine.model.new_cache(), prompt, params)]
        for prompt in prompts
    ]
    runs = [iter(engine.decode(engine.model.new_cache(), prompt, params)) for prompt in prompts]
    mixed: list[list[int]] = [[], []]
    for _ in range(3):
        for run, ids in zip(runs, mixed, strict=True):
            ids.append(next(run).id)
    assert mixed == alone
