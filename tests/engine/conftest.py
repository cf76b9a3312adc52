"""Models that several files of tests share; each is made once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.models.base import Model
from engine.weights import load_model
from tests.engine import tiny

TinyFactory = Callable[[str], tiny.Tiny]


@pytest.fixture(scope="session")
def tiny_of(tmp_path_factory: pytest.TempPathFactory) -> TinyFactory:
    """`tiny_of(family)`: that family's tiny model, as transformers' and as ours."""
    made: dict[str, tiny.Tiny] = {}

    def get(family: str) -> tiny.Tiny:
        if family not in made:
            reference = tiny.make_reference(family)
            folder = tiny.save(reference, tmp_path_factory.mktemp("tiny") / family)
            model = load_model(folder, dtype=torch.float32)
            made[family] = tiny.Tiny(reference, folder, model)
        return made[family]

    return get


@pytest.fixture(scope="session")
def llama(tiny_of: TinyFactory) -> Model:
    """The tiny Llama, float32."""
    return tiny_of("llama").model


@pytest.fixture(scope="session")
def long_llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny Llama of 2048 positions, for long conversations."""
    reference = tiny.make_reference("llama", max_position_embeddings=2048)
    folder = tiny.save(reference, tmp_path_factory.mktemp("tiny") / "long_llama")
    return load_model(folder, dtype=torch.float32)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Model:
    """The real SmolLM2, float32."""
    return load_model(smollm2_path, dtype=torch.float32)
