"""The resident CPU engine: exact against eager, its protocol, and what can go wrong with it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from engine import cpu_cores, mailbox
from engine.cpu import PersistentCpuEngine
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.weights import as_weights
from tests.engine.conftest import TinyFactory
from tests.engine.tiny import CONTEXT, FAMILIES, VOCAB, poison, random_ids
from tests.kernels.close import assert_close

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tiny_of: TinyFactory) -> Model:
    """Nine heads over three, float32."""
    return tiny_of("smollm2").model


@pytest.fixture(scope="module")
def engine(model: Model) -> Iterator[PersistentCpuEngine]:
    engine = PersistentCpuEngine(model)
    yield engine
    engine.close()


def ids_of(engine: PersistentCpuEngine, prompt: list[int], params: SamplingParams) -> list[int]:
    return [token.id for token in engine.decode(engine.model.new_cache(), prompt, params)]


def wait_until_working(engine: PersistentCpuEngine) -> None:
    deadline = time.monotonic() + 20
    while engine.resident.words[mailbox.PUBLISHED] == 0 and time.monotonic() < deadline:
        time.sleep(1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [1, 2, 4, 5, 7, 65])
def test_logits_equal_eager_s(tiny_of: TinyFactory, family: str, length: int) -> None:
    model = tiny_of(family).model
    prompt = random_ids(length, seed=length)
    expected = EagerEngine(model).logits(model.new_cache(), prompt)[-1]
    engine, cache = PersistentCpuEngine(model), poison(model.new_cache())
    engine.resident.shared.logits[:] = float("nan")
    (token,) = engine.decode(cache, prompt, SamplingParams(max_tokens=1))
    actual = torch.from_numpy(engine.resident.shared.logits[0, :VOCAB].copy())
    assert_close("logits", expected, actual, 2e-5)
    assert token.logprob == pytest.approx(float(expected.log_softmax(-1)[token.id]), abs=1e-3)
    engine.close()


def test_the_whole_context(engine: PersistentCpuEngine, model: Model) -> None:
    prompt = random_ids(CONTEXT)
    cache = poison(model.new_cache(), seed=3)
    run = engine.decode(cache, prompt, SamplingParams())
    (token,) = run
    assert run.finish_reason == "context" and cache.free == 0
    assert token.id == int(EagerEngine(model).logits(model.new_cache(), prompt)[-1].argmax())
    with pytest.raises(UnpausedError, match="context"):
        engine.decode(cache, [1], SamplingParams())


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=40),
        SamplingParams(temperature=0.8, seed=5, max_tokens=40),
        SamplingParams(temperature=0.9, top_k=20, seed=2**64 - 1, max_tokens=40),
        SamplingParams(temperature=1.2, top_p=0.8, min_p=0.02, seed=7, max_tokens=40),
        SamplingParams(repetition_penalty=1.4, max_tokens=40),
        SamplingParams(temperature=0.7, repetition_penalty=1.2, top_p=0.9, max_tokens=40),
    ],
)
def test_same_seed_same_tokens_as_eager(
    engine: PersistentCpuEngine, model: Model, params: SamplingParams
) -> None:
    prompt = random_ids(9)
    eager = EagerEngine(model).decode(model.new_cache(), prompt, params)
    assert ids_of(engine, prompt, params) == [token.id for token in eager]


def test_a_conversation_changes_engines_on_one_cache(
    engine: PersistentCpuEngine, model: Model
) -> None:
    eager, params = EagerEngine(model), SamplingParams(max_tokens=10)
    alone, mixed = model.new_cache(), model.new_cache()
    for turn in range(4):
        prompt = random_ids(7, seed=turn)
        expected = [token.id for token in eager.decode(alone, prompt, params)]
        now = engine if turn % 2 else eager
        assert [token.id for token in now.decode(mixed, prompt, params)] == expected
        assert mixed.token_ids == alone.token_ids


def test_bit_identical_from_run_to_run(engine: PersistentCpuEngine) -> None:
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=60)
    runs = [
        [(t.id, t.logprob) for t in engine.decode(engine.model.new_cache(), [1, 2], params)]
        for _ in range(3)
    ]
    assert runs[0] == runs[1] == runs[2]


def test_one_doorbell_a_reply_and_increasing_times(engine: PersistentCpuEngine) -> None:
    rung = engine.resident.words[mailbox.DOORBELL]
    run = engine.decode(engine.model.new_cache(), random_ids(9), SamplingParams(max_tokens=30))
    tokens = list(run)
    assert engine.resident.words[mailbox.DOORBELL] - rung == run.launches == 1
    times = [token.time_ns for token in tokens]
    assert times == sorted(times)
    assert run.prefill_end_ns and run.start_ns < run.prefill_end_ns < times[0]


def test_stop_leaves_the_cache_as_if_nothing_more_had_been_decoded(
    engine: PersistentCpuEngine,
) -> None:
    cache, prompt = engine.model.new_cache(), random_ids(5)
    run = engine.decode(cache, prompt, SamplingParams(max_tokens=150))
    tokens = [next(iter(run)).id for _ in range(3)]
    run.stop()
    assert list(run) == [] and run.finish_reason == "stopped"
    assert cache.token_ids == prompt + tokens[:-1]
    assert engine.resident.words[mailbox.IDLE] == engine.threads
    poison(cache)
    assert ids_of(engine, [*prompt, *tokens], SamplingParams(max_tokens=5)) == [
        token.id for token in engine.decode(cache, tokens[-1:], SamplingParams(max_tokens=5))
    ]


def test_stop_from_another_thread_and_before_the_start(engine: PersistentCpuEngine) -> None:
    cache = engine.model.new_cache()
    run = engine.decode(cache, [1], SamplingParams(max_tokens=190))
    threading.Timer(0.0, run.stop).start()
    count = len(list(run))
    assert run.finish_reason in ("stopped", "length") and cache.length == max(count, 0)
    run = engine.decode(engine.model.new_cache(), [1], SamplingParams())
    run.stop()
    assert list(run) == [] and run.finish_reason == "stopped" and run.launches == 0


def test_an_abandoned_reply_frees_the_engine(engine: PersistentCpuEngine) -> None:
    for _ in engine.decode(engine.model.new_cache(), [1], SamplingParams(max_tokens=190)):
        break
    assert len(ids_of(engine, [2], SamplingParams(max_tokens=3))) == 3


def test_a_second_reply_is_refused_while_one_runs(engine: PersistentCpuEngine) -> None:
    run = engine.decode(engine.model.new_cache(), [1], SamplingParams(max_tokens=190))
    next(iter(run))
    with pytest.raises(UnpausedError, match="another reply"):
        engine.decode(engine.model.new_cache(), [1], SamplingParams())
    with pytest.raises(UnpausedError, match="another reply"):
        engine.prefill(engine.model.new_cache(), [1])
    run.stop()
    engine.prefill(engine.model.new_cache(), [1])


def test_stop_ids_end_the_reply_and_are_forgotten_by_the_next(
    engine: PersistentCpuEngine,
) -> None:
    free = ids_of(engine, [1, 2, 3], SamplingParams(max_tokens=20))
    stop = SamplingParams(max_tokens=20, stop_ids=frozenset({free[4], 10**9}))
    run = engine.decode(engine.model.new_cache(), [1, 2, 3], stop)
    assert [token.id for token in run] == free[: free.index(free[4]) + 1]
    assert run.finish_reason == "eos"
    assert ids_of(engine, [1, 2, 3], SamplingParams(max_tokens=20)) == free


def test_a_stage_that_hangs_is_named_and_the_engine_recovers(
    engine: PersistentCpuEngine,
) -> None:
    words = engine.resident.words
    patience = int(words[mailbox.TIMEOUT_NS])
    words[mailbox.TIMEOUT_NS] = -1  # any wait long enough to look at the clock is too long
    cache = engine.model.new_cache()
    try:
        if engine.threads > 1:
            with pytest.raises(UnpausedError, match=r"stage '.*', layer \d+, token \d+"):
                for _ in range(200):
                    list(engine.decode(cache, [1], SamplingParams(max_tokens=150)))
                    cache.truncate(0)
    finally:
        words[mailbox.TIMEOUT_NS] = patience
    assert len(ids_of(engine, [1], SamplingParams(max_tokens=4))) == 4


@pytest.mark.parametrize("threads", [1, 5])
def test_any_number_of_threads_gives_the_same_text(
    model: Model, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [
        token.id
        for token in EagerEngine(model).decode(
            model.new_cache(), random_ids(9), SamplingParams(max_tokens=20)
        )
    ]
    monkeypatch.setattr(cpu_cores, "physical_cores", lambda: [0] * threads)
    engine = PersistentCpuEngine(model)
    assert engine.threads == threads
    assert ids_of(engine, random_ids(9), SamplingParams(max_tokens=20)) == expected
    engine.close()


def test_threads_are_bounded_by_what_is_asked(model: Model) -> None:
    engine = PersistentCpuEngine(model, threads=1)
    assert engine.threads == 1
    engine.close()
    with pytest.raises(UnpausedError, match="closed"):
        engine.decode(model.new_cache(), [1], SamplingParams())


def test_an_idle_engine_costs_no_core(engine: PersistentCpuEngine) -> None:
    ids_of(engine, [1], SamplingParams(max_tokens=3))
    resident = [t for t in threading.enumerate() if t.name.startswith("persistent-cpu")]
    assert resident
    time.sleep(0.1)  # past the spinning
    before = {t.id: t.user_time + t.system_time for t in psutil.Process().threads()}
    time.sleep(1.0)
    after = {t.id: t.user_time + t.system_time for t in psutil.Process().threads()}
    spent = sum(after[t.native_id] - before[t.native_id] for t in resident if t.native_id in after)
    assert spent <= 0.01


def test_closing_in_the_middle_of_a_reply_leaves_no_thread(model: Model) -> None:
    engine = PersistentCpuEngine(model)
    run = engine.decode(model.new_cache(), [1], SamplingParams(max_tokens=190))
    next(iter(run))
    own = list(engine.resident._threads)
    engine.close()
    engine.close()
    assert not any(thread.is_alive() for thread in own)


def test_garbage_collection_closes_the_engine(model: Model) -> None:
    engine = PersistentCpuEngine(model)
    own = list(engine.resident._threads)
    del engine
    assert not any(thread.is_alive() for thread in own)


_LEAVES = """
import sys, time
from tests.engine.tiny import make_reference, save
from engine.weights import load_model
from engine.cpu import PersistentCpuEngine
from engine.sampling import SamplingParams
from pathlib import Path
import torch
model = load_model(save(make_reference("smollm2"), Path(sys.argv[1])), dtype=torch.float32)
engine = PersistentCpuEngine(model)
if sys.argv[2] == "decoding":
    run = engine.decode(model.new_cache(), [1], SamplingParams(max_tokens=190))
    next(run)
print(time.time(), flush=True)
"""


@pytest.mark.parametrize("state", ["idle", "decoding"])
def test_a_process_leaves_whatever_its_threads_do(tmp_path: Path, state: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEAVES, str(tmp_path / "model"), state],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_other_dtypes_and_caches_are_refused(engine: PersistentCpuEngine, model: Model) -> None:
    cache = model.new_cache()
    cache.k = cache.k.bfloat16()
    with pytest.raises(UnpausedError, match="another model"):
        engine.decode(cache, [1], SamplingParams())
    halves = {name: tensor.half() for name, tensor in model.weights.tensors().items()}
    with pytest.raises(UnpausedError, match="float16"):
        PersistentCpuEngine(Model("half", model.config, as_weights(halves)))
