"""`persistent` is the best persistent engine that runs, and says which; and what tape refuses."""

from __future__ import annotations

import logging

import pytest
import torch

from engine.cpu import PersistentCpuEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.persistent_tape import PersistentTapeEngine
from engine.persistent_triton import PersistentTritonEngine
from engine.registry import ENGINES, concrete_name, engine_entry


def test_the_alias_is_not_an_engine_of_its_own() -> None:
    assert "persistent" not in ENGINES
    assert engine_entry("persistent").name == "persistent"


def test_the_best_that_runs_is_taken_and_named(
    llama: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PersistentTapeEngine, "unavailable", staticmethod(lambda: "no GPU"))
    monkeypatch.setattr(PersistentTritonEngine, "unavailable", staticmethod(lambda: "no Triton"))
    reason = PersistentCpuEngine.unavailable()
    if reason:
        pytest.skip(reason)
    with caplog.at_level(logging.WARNING, "engine.registry"):
        engine = engine_entry("persistent").build(llama, 1)
    engine.close()
    assert engine.name == "persistent-cpu"
    assert "no GPU" in caplog.text and "so persistent-cpu" in caplog.text


def test_the_alias_stands_for_one_engine_before_there_is_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PersistentTapeEngine, "unavailable", staticmethod(lambda: "no GPU"))
    for engine in (PersistentTritonEngine, PersistentCpuEngine):
        monkeypatch.setattr(engine, "unavailable", staticmethod(lambda: None))
    assert concrete_name("persistent") == "persistent-triton"
    assert concrete_name("eager") == "eager"
    with pytest.raises(UnpausedError, match="unknown engine 'nope'"):
        concrete_name("nope")


def test_when_none_runs_every_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in (PersistentTapeEngine, PersistentTritonEngine, PersistentCpuEngine):
        reason = f"{engine.__name__} is tired"
        monkeypatch.setattr(engine, "unavailable", staticmethod(lambda why=reason: why))
    told = engine_entry("persistent").unavailable()
    assert told is not None and told.count("is tired") == 3 and "\n" not in told
    with pytest.raises(UnpausedError, match="no persistent engine runs here"):
        concrete_name("persistent")


def test_tape_refuses_other_devices_and_dtypes_by_name(llama: Model) -> None:
    with pytest.raises(UnpausedError, match="decodes on an NVIDIA GPU, but the model is on cpu"):
        PersistentTapeEngine(llama)
    if torch.cuda.is_available():
        tensors = {name: tensor.cuda() for name, tensor in llama.weights.tensors().items()}
        from engine.weights import as_weights

        moved = Model(llama.name, llama.config, as_weights(tensors))
        with pytest.raises(UnpausedError, match=r"has no torch\.float32"):
            PersistentTapeEngine(moved)
