"""A tiny model on disk, and what the bench measured of it, once a session."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import app
from benchmarks.results import Entry, load_file
from engine.cpu import PersistentCpuEngine
from engine.models.base import Model
from engine.registry import ENGINES, EngineEntry
from engine.weights import as_weights, load_model
from tests.engine import tiny

# As little as gives every part something to measure; the tiny model holds 200 positions.
SMALL = (
    "--device",
    "cpu",
    "--rounds",
    "2",
    "--tokens",
    "8",
    "--gate",
    "16",
    "--context",
    "64",
    "32",
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny SmolLM2 as a Hugging Face folder."""
    return tiny.save(tiny.make_reference("smollm2"), tmp_path_factory.mktemp("bench") / "tiny")


@pytest.fixture(scope="session")
def model(folder: Path) -> Model:
    """The same, loaded in bfloat16."""
    return load_model(folder)


@pytest.fixture(scope="session")
def result_path(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete results file of the tiny model."""
    path = tmp_path_factory.mktemp("results") / "bench_tiny.json"
    assert app.main(["bench", "--models", str(folder), "--json", str(path), *SMALL]) == 0
    return path


@pytest.fixture
def entry(result_path: Path) -> Entry:
    """Its one entry."""
    (only,) = load_file(result_path)
    return only


class FlippedEngine(PersistentCpuEngine):
    """The CPU engine with one bit of one weight flipped, as a broken kernel or memory would."""

    name = "flipped"

    def __init__(self, model: Model, threads: int | None = None) -> None:
        tensors = {kind: tensor.clone() for kind, tensor in model.weights.tensors().items()}
        one = tensors["down"][0, 3].view(torch.int16)
        one[5] ^= 0x4000  # the highest bit of the exponent
        super().__init__(Model(model.name, model.config, as_weights(tensors)), threads)


@pytest.fixture
def flipped(monkeypatch: pytest.MonkeyPatch) -> str:
    """A registered engine whose weights have one flipped bit; its name."""
    location = f"{FlippedEngine.__module__}:{FlippedEngine.__qualname__}"
    entry = EngineEntry("flipped", "Broken", "one flipped bit", location)
    assert dataclasses.is_dataclass(entry)
    monkeypatch.setitem(ENGINES, "flipped", entry)
    return "flipped"
