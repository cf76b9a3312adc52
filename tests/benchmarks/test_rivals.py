"""Other programs: the same weights, and words where they cannot compete."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from benchmarks import rivals
from benchmarks.rivals import TransformersSide, open_rivals, transformers_twin
from benchmarks.subject import Subject
from engine.eager import EagerEngine
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.weights import load_model
from tests.engine import tiny


@pytest.mark.parametrize("family", ["smollm2", "llama3", "qwen2", "qwen3"])
def test_transformers_says_what_we_say_in_float32(family: str, tmp_path: Path) -> None:
    ours = load_model(tiny.save(tiny.make_reference(family), tmp_path), dtype=torch.float32)
    prompt, params = tiny.random_ids(20), SamplingParams(max_tokens=12)
    reply = TransformersSide(transformers_twin(ours), prompt).reply(params)
    run = EagerEngine(ours).decode(ours.new_cache(), prompt, params)
    assert reply.tokens == [token.id for token in run]
    assert len(reply.itl_ms) == 11 and (reply.itl_ms > 0).all()
    assert reply.launches_per_token is None


def test_nobody_competes_unasked(model: Model) -> None:
    assert not list(open_rivals(None, Subject(model, True), [1, 2], 4, 1))


def test_a_rival_that_is_not_installed_is_said(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = dict(open_rivals([], Subject(model, True), [1, 2], 4, 1))
    assert set(found) == set(rivals.RIVALS)
    assert all("is not installed" in str(reason) for reason in found.values())


def test_llama_cpp_needs_a_gguf_file(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    ((_, reason),) = open_rivals(["llama.cpp"], Subject(model, True), [1, 2], 4, 1)
    assert isinstance(reason, str) and "GGUF" in reason
