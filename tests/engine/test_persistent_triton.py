"""The persistent kernel's whole protocol: interpreted with a grid of one, natively on a GPU."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from engine import mailbox as mb
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.persistent_triton import PersistentTritonEngine
from engine.sampling import SamplingParams
from kernels import decode_step as step
from kernels import stages
from kernels.persistent import tiles_for
from kernels.tuning import Tile, Tuning
from tests.engine.tiny import poison
from tests.kernels.triton_workspace import CONFIGS, DEVICE, config, model_of, needs_triton

pytestmark = needs_triton
PROMPT = [5, 99, 7, 300, 12]
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.4},
    {"temperature": 0.9, "seed": 2**64 - 3},
    {"temperature": 0.9, "top_k": 30},
    {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2},
    {"temperature": 1.1, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
]


@pytest.fixture(scope="module")
def model() -> Model:
    shape = config(hidden=64, intermediate=96, heads=6, kv_heads=2, head_dim=16, layers=2)
    return model_of(shape)


@pytest.fixture(scope="module")
def engine(model: Model) -> PersistentTritonEngine:
    return built(model)


def built(model: Model) -> PersistentTritonEngine:
    """Interpreted, a step takes as long as it has operations: large tiles make few."""
    if DEVICE.type == "cuda":
        return PersistentTritonEngine(model)
    tile = Tile(128, 64, 4)
    return PersistentTritonEngine(
        model, tuning=Tuning(tile, tile, tile, tile, tile, 1, 32, 4, 0, 1)
    )


def reply(engine: Any, prompt: list[int], **values: Any) -> tuple[list[int], list[float], Any]:
    run = engine.decode(poison(engine.model.new_cache()), prompt, SamplingParams(**values))
    tokens = list(run)
    return [t.id for t in tokens], [t.logprob for t in tokens], run


def test_words_are_the_mailboxs() -> None:
    for name in (
        "DOORBELL", "STOP", "TIMEOUT_NS", "START", "CAPACITY", "KEYS", "VALUES", "MAX_TOKENS",
        "SEED", "TOP_K", "FINISH", "PREFILL_END_NS", "NEXT_TOKEN", "PUBLISHED", "STOP_IDS",
        "MAX_STOP_IDS", "TEMPERATURE", "TOP_P", "MIN_P", "EOS", "LENGTH", "CONTEXT", "STOPPED",
        "FAULTED",
    ):  # fmt: skip
        assert getattr(step, name).value == getattr(mb, name), name
    assert step.FAULT_WORD.value == mb.FAULT and step.PENALTY.value == mb.REPETITION_PENALTY
    assert mb.STOP_COUNT == mb.STOP_IDS - 1
    for name in ("QKV", "ATTENTION", "OUTPUT", "GATE_UP", "DOWN", "HEAD", "SAMPLE"):
        assert getattr(step, f"_{name}").value == getattr(stages, name), name


@pytest.mark.parametrize("values", SAMPLERS, ids=str)
def test_text_is_the_eager_engines(
    model: Model, engine: PersistentTritonEngine, values: dict[str, Any]
) -> None:
    ids, logprobs, run = reply(engine, PROMPT, max_tokens=6, **values)
    expected, expected_logprobs, _ = reply(EagerEngine(model), PROMPT, max_tokens=6, **values)
    assert ids == expected
    assert logprobs == pytest.approx(expected_logprobs, abs=1e-3)
    assert run.finish_reason == "length" and run.launches == 1
    assert run.start_ns <= run.prefill_end_ns


@pytest.mark.parametrize("name", CONFIGS)
def test_every_shape(name: str) -> None:
    small = model_of(CONFIGS[name])
    engine = built(small)
    ids, _, _ = reply(engine, PROMPT, max_tokens=3)
    assert ids == reply(EagerEngine(small), PROMPT, max_tokens=3)[0]


def test_stop_id_ends_and_the_cache_holds_what_was_fed(engine: PersistentTritonEngine) -> None:
    ids, _, _ = reply(engine, PROMPT, max_tokens=4)
    cache = engine.model.new_cache()
    params = SamplingParams(max_tokens=9, stop_ids=frozenset({ids[2], 1}))
    run = engine.decode(cache, PROMPT, params)
    assert [token.id for token in run] == ids[:3]
    assert run.finish_reason == "eos" and cache.token_ids == PROMPT + ids[:2]


def test_a_full_cache_ends_the_reply(engine: PersistentTritonEngine) -> None:
    cache = engine.model.new_cache(len(PROMPT) + 2)
    run = engine.decode(cache, PROMPT, SamplingParams(max_tokens=50))
    assert len(list(run)) == 3 and run.finish_reason == "context" and cache.free == 0


def test_goes_on_where_another_engine_stopped(engine: PersistentTritonEngine) -> None:
    whole, _, _ = reply(engine, PROMPT, max_tokens=6)
    cache, eager = poison(engine.model.new_cache()), EagerEngine(engine.model)
    begun = [t.id for t in eager.decode(cache, PROMPT, SamplingParams(max_tokens=3))]
    rest = [t.id for t in engine.decode(cache, begun[-1:], SamplingParams(max_tokens=3))]
    assert begun + rest == whole


def test_stops_in_the_middle_of_a_reply(engine: PersistentTritonEngine) -> None:
    cache = engine.model.new_cache()
    run = engine.decode(cache, PROMPT, SamplingParams(max_tokens=120))
    got = [next(iter(run)).id, next(iter(run)).id]
    run.stop()
    assert run.finish_reason == "stopped" and list(run) == []
    published = int(engine.resident.words[mb.PUBLISHED])
    assert published < 120, "the kernel ended, not only whoever read it"
    assert cache.token_ids == PROMPT + got[:1]
    assert reply(engine, PROMPT, max_tokens=2)[0] == got, "and the engine goes on"


def test_a_reply_that_nobody_holds_is_stopped(engine: PersistentTritonEngine) -> None:
    run = engine.decode(engine.model.new_cache(), PROMPT, SamplingParams(max_tokens=120))
    next(iter(run))
    with pytest.raises(UnpausedError, match="decoding another reply: stop that one first"):
        engine.decode(engine.model.new_cache(), PROMPT, SamplingParams())
    del run
    assert len(reply(engine, PROMPT, max_tokens=2)[0]) == 2


def test_stopping_from_another_thread(engine: PersistentTritonEngine) -> None:
    run = engine.decode(engine.model.new_cache(), PROMPT, SamplingParams(max_tokens=120))

    def stop() -> None:
        deadline = time.monotonic() + 60
        while engine.resident.words[mb.PUBLISHED] < 3 and time.monotonic() < deadline:
            time.sleep(1e-4)
        run.stop()

    stopper = threading.Thread(target=stop)
    next(iter(run))
    stopper.start()
    assert len(list(run)) < 119
    stopper.join(60)
    assert run.finish_reason == "stopped"


def test_a_program_that_never_arrives_is_named(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lonely = built(model)
    constants = lonely.kernel._constants

    def one_too_many() -> dict[str, Any]:
        return constants() | {"GRID": lonely.kernel.programs + 1}

    monkeypatch.setattr(lonely.kernel, "_constants", one_too_many)
    lonely.resident.words[mb.TIMEOUT_NS] = 5_000_000
    run = lonely.decode(model.new_cache(), PROMPT, SamplingParams(max_tokens=4))
    with pytest.raises(UnpausedError, match="stage 'norm \\+ QKV', layer 0, token 0, and ended"):
        list(run)
    monkeypatch.undo()
    lonely.resident.words[mb.TIMEOUT_NS] = 2_000_000_000
    expected, _, _ = reply(EagerEngine(model), PROMPT, max_tokens=3)
    assert reply(lonely, PROMPT, max_tokens=3)[0] == expected, "the engine survives it"


def test_refusals(engine: PersistentTritonEngine) -> None:
    with pytest.raises(UnpausedError, match=r"needs 5 positions but the context holds 4"):
        engine.decode(engine.model.new_cache(4), PROMPT, SamplingParams())
    other = model_of(config(hidden=64, heads=3, kv_heads=3, head_dim=16, layers=2)).new_cache()
    with pytest.raises(UnpausedError, match=r"new_cache\(\)"):
        engine.decode(other, PROMPT, SamplingParams())
    many = SamplingParams(stop_ids=frozenset(range(20)))
    with pytest.raises(UnpausedError, match="at most 16 stop ids, not 20"):
        list(engine.decode(engine.model.new_cache(), PROMPT, many))
    assert len(reply(engine, PROMPT, max_tokens=2)[0]) == 2


def test_closed_is_closed(model: Model) -> None:
    one = built(model)
    one.close()
    one.close()
    with pytest.raises(UnpausedError, match="has been closed"):
        one.decode(model.new_cache(), PROMPT, SamplingParams())


def test_tiles_leave_few_programs_idle() -> None:
    for shape in CONFIGS.values():
        for programs in (1, 132, 528):
            chosen = tiles_for(shape, programs, 4096)
            assert chosen.splits == 1 or shape.kv_heads * chosen.splits <= programs
            for tile in (chosen.qkv, chosen.o, chosen.gate_up, chosen.down, chosen.head):
                assert tile.rows % 2 == 0 and tile.rows * tile.block_k <= 4096


def test_bfloat16_is_close(model: Model) -> None:
    half = model_of(model.config, torch.bfloat16)
    logits = built(half).logits(half.new_cache(), PROMPT)
    eager = EagerEngine(half).logits(half.new_cache(), PROMPT)
    assert ((logits - eager).norm() / eager.norm()).item() < 3e-2
