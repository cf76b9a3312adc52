"""The gate: what is green, and everything that must not be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks import gate as gates
from benchmarks.gate import Gate, Verdict, reference_model
from engine.cpu import PersistentCpuEngine
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.weights import as_weights
from tests.benchmarks.conftest import FlippedEngine
from tests.engine.tiny import random_ids

POSITIONS = 16


@pytest.fixture(scope="module")
def gate(model: Model) -> Gate:
    return Gate.open(model, random_ids(40), POSITIONS, POSITIONS)


@pytest.fixture
def engine(model: Model) -> Iterator[PersistentCpuEngine]:
    made = PersistentCpuEngine(model)
    yield made
    made.close()


def test_sound_engines_are_green(gate: Gate, model: Model, engine: PersistentCpuEngine) -> None:
    for each in (EagerEngine(model), engine):
        verdict = gate.judge(each)
        assert verdict.green and verdict.repeatable and verdict.wrong_beyond_margin == 0
        assert verdict.mean_kl is not None and verdict.mean_kl <= 1.05 * gate.native_kl
    assert gate.margin > 0


def test_one_flipped_bit_is_red(gate: Gate, model: Model) -> None:
    broken = FlippedEngine(model)
    verdict = gate.judge(broken)
    broken.close()
    assert not verdict.green and "float32 reference" in verdict.reason


def test_slightly_worse_distributions_are_red_by_kl_alone(
    gate: Gate, engine: PersistentCpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = engine.logits
    monkeypatch.setattr(engine, "logits", lambda cache, ids: whole(cache, ids) * 1.1)
    verdict = gate.judge(engine)
    assert not verdict.green and "mean KL" in verdict.reason


def test_only_the_native_engine_may_differ_a_little_from_itself(
    gate: Gate, model: Model, engine: PersistentCpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = gate.judge(engine).mean_kl
    assert own is not None
    for share, eager_green in ((0.97, True), (0.5, False)):
        monkeypatch.setattr(gate, "native_kl", own * share)  # as if it had been less before
        assert not gate.judge(engine).green
        monkeypatch.setattr(gate, "native_kl", gate_native(gate, model) * share)
        assert gate.judge(EagerEngine(model)).green is eager_green


def gate_native(gate: Gate, model: Model) -> float:
    """What the native engine shows now."""
    found = gate.judge(EagerEngine(model)).mean_kl
    assert found is not None
    return found


def test_nan_is_never_green(
    gate: Gate, engine: PersistentCpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = engine.logits
    monkeypatch.setattr(engine, "logits", lambda cache, ids: whole(cache, ids) * float("nan"))
    verdict = gate.judge(engine)
    assert not verdict.green and "not numbers" in verdict.reason


def test_an_engine_without_logits_cannot_be_judged(gate: Gate, engine: PersistentCpuEngine) -> None:
    class Mute:
        name, model = "mute", engine.model
        decode, prefill, close = engine.decode, engine.prefill, engine.close
        weight_bytes_per_token = engine.weight_bytes_per_token

    verdict = gate.judge(Mute())
    assert not verdict.green and "no logits" in verdict.reason


def test_a_reply_that_changes_when_asked_again_is_red(
    gate: Gate, engine: PersistentCpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = []
    monkeypatch.setattr(gate, "judge_reply", lambda tokens, verdict: None)  # both are defensible
    whole = engine.decode

    def moody(cache: object, ids: object, params: object) -> object:
        run = list(whole(cache, ids, params))  # type: ignore[arg-type]
        replies.append(run)
        return run if len(replies) < 3 else list(reversed(run))

    monkeypatch.setattr(engine, "decode", moody)
    verdict = gate.judge(engine)
    assert not verdict.green and "two different greedy replies" in verdict.reason


def test_toss_ups_are_allowed_and_clear_choices_are_not(gate: Gate, model: Model) -> None:
    reference = EagerEngine(reference_model(model))
    cache = reference.model.new_cache()
    reference.prefill(cache, gate.prompt[:-1])
    tokens: list[int] = []
    for _ in range(POSITIONS):
        logits = reference.step(cache, [tokens[-1] if tokens else gate.prompt[-1]])
        tokens.append(int(logits.argmax()))
    right = Verdict()
    gate.judge_reply(tokens, right)
    assert right.green and right.other_token == 0
    wrong = Verdict()
    gate.judge_reply([(token + 1) % model.config.vocab for token in tokens], wrong)
    assert not wrong.green and wrong.other_token == POSITIONS


def test_damaged_weights_leave_nothing_to_judge_by(model: Model) -> None:
    tensors = {kind: tensor.clone() for kind, tensor in model.weights.tensors().items()}
    tensors["norm"].neg_()
    damaged = Model("damaged", model.config, as_weights(tensors), None, model.checkpoint)
    with pytest.raises(UnpausedError, match="loaded weights are damaged"):
        Gate.open(damaged, random_ids(20), 8, 8)


def test_the_reference_reads_the_file_not_the_rounded_weights(model: Model) -> None:
    reference = reference_model(model)
    assert reference.dtype == torch.float32
    exact, rounded = reference.weights.down, model.weights.down.float()
    assert not torch.equal(exact, rounded) and torch.equal(exact.bfloat16().float(), rounded)


def test_a_reference_that_does_not_fit_is_said(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(config: object, device: object, dtype: object, name: str) -> None:
        raise UnpausedError(f"{name} needs 32.1 GB on the GPU and 8.0 GB are free")

    monkeypatch.setattr(gates, "check_memory", full)
    with pytest.raises(UnpausedError, match="the float32 reference of"):
        Gate.open(model, random_ids(20), 8, 8)
