"""The engine `triton` keeps the contract: interpreted on a small model, natively on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.triton_engine import TritonEngine
from kernels.tuning import Tile, Tuning
from tests.engine.tiny import poison
from tests.kernels.triton_workspace import VOCAB, config, model_of, needs_triton

pytestmark = needs_triton
PROMPT = [5, 99, 7, 300, 12]


@pytest.fixture(scope="module")
def model() -> Model:
    shape = config(hidden=64, intermediate=96, heads=3, kv_heads=1, head_dim=16, layers=2)
    return model_of(shape)


@pytest.fixture(scope="module")
def engine(model: Model) -> TritonEngine:
    tile = Tile(128, 64, 4)
    return TritonEngine(model, tuning=Tuning(tile, tile, tile, tile, tile, 2, 32, 4, 0, 1))


def reply(engine: Any, prompt: list[int], **values: Any) -> tuple[list[int], list[float], Any]:
    run = engine.decode(poison(engine.model.new_cache()), prompt, SamplingParams(**values))
    tokens = list(run)
    return [t.id for t in tokens], [t.logprob for t in tokens], run


@pytest.mark.parametrize(
    "values",
    [{}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.9, "top_k": 30, "top_p": 0.9}],
    ids=str,
)
def test_text_is_the_eager_engines(
    model: Model, engine: TritonEngine, values: dict[str, Any]
) -> None:
    ids, logprobs, run = reply(engine, PROMPT, max_tokens=6, **values)
    expected, expected_logprobs, _ = reply(EagerEngine(model), PROMPT, max_tokens=6, **values)
    assert ids == expected
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-3)
    assert run.finish_reason == "length"
    passes = 8 * (("top_k" in values) + ("top_p" in values))
    assert run.launches == 6 * (5 * 2 + 2 + passes + bool(passes)), "counted, every one"
    assert run.prefill_end_ns is not None


def test_stop_token_ends_and_the_cache_holds_what_was_fed(engine: TritonEngine) -> None:
    ids, _, _ = reply(engine, PROMPT, max_tokens=4)
    cache = engine.model.new_cache()
    run = engine.decode(cache, PROMPT, SamplingParams(max_tokens=9, stop_ids={ids[2]}))
    assert [token.id for token in run] == ids[: ids.index(ids[2]) + 1]
    assert run.finish_reason == "eos"
    assert cache.token_ids == [*PROMPT, *ids[: ids.index(ids[2])]]
    # Steps launched past the end left nothing behind: the conversation goes on as if alone.
    more = [token.id for token in engine.decode(cache, [ids[2], 4], SamplingParams(max_tokens=3))]
    history = [*PROMPT, *ids[: ids.index(ids[2])], ids[2], 4]
    assert more == reply(engine, history, max_tokens=3)[0]


def test_stop_takes_effect_before_the_next_token(engine: TritonEngine) -> None:
    run = engine.decode(engine.model.new_cache(), PROMPT, SamplingParams(max_tokens=50))
    seen = []
    for token in run:
        seen.append(token)
        run.stop()
    assert len(seen) == 1 and run.finish_reason == "stopped"


def test_two_replies_in_turn_do_not_disturb_each_other(engine: TritonEngine) -> None:
    other = [8, 9, 10]
    alone = [reply(engine, prompt, max_tokens=5)[0] for prompt in (PROMPT, other)]
    runs = [
        iter(engine.decode(engine.model.new_cache(), prompt, SamplingParams(max_tokens=5)))
        for prompt in (PROMPT, other)
    ]
    mixed: list[list[int]] = [[], []]
    for _ in range(5):
        for run, ids in zip(runs, mixed, strict=True):
            ids.append(next(run).id)
    assert mixed == alone


def test_a_full_cache_ends_the_reply(engine: TritonEngine) -> None:
    cache = engine.model.new_cache(len(PROMPT) + 2)
    run = engine.decode(cache, PROMPT, SamplingParams(max_tokens=50))
    assert len(list(run)) == 3 and run.finish_reason == "context" and cache.free == 0


def test_refuses_a_cache_of_another_shape(engine: TritonEngine) -> None:
    shape = config(hidden=64, intermediate=96, heads=3, kv_heads=3, head_dim=16, layers=2)
    other = model_of(shape).new_cache()
    with pytest.raises(UnpausedError, match=r"new_cache\(\)"):
        engine.decode(other, PROMPT, SamplingParams())
    half = model_of(engine.model.config, torch.bfloat16).new_cache()
    with pytest.raises(UnpausedError, match="bfloat16"):
        engine.decode(half, PROMPT, SamplingParams())


def test_bfloat16_is_close(model: Model) -> None:
    half = model_of(model.config, torch.bfloat16)
    tile = Tile(128, 64, 4)
    tuned = Tuning(tile, tile, tile, tile, tile, 2, 32, 4, 0, 1)
    logits = TritonEngine(half, tuning=tuned).logits(half.new_cache(), PROMPT)
    wide = Model("wide", half.config, model_of(model.config, torch.bfloat16).weights)
    widened = {name: t.float() for name, t in wide.weights.tensors().items()}
    from engine.weights import as_weights

    reference = EagerEngine(Model("wide", half.config, as_weights(widened)))
    expected = reference.logits(reference.model.new_cache(), PROMPT)
    assert logits.shape == (len(PROMPT), VOCAB)
    # Only keys and values are rounded to bfloat16; everything else is float32.
    assert ((logits - expected).norm() / expected.norm()).item() < 1e-2
