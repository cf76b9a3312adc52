"""The gate, for every format of weights, against the dequantised weights in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.cpu import PersistentCpuEngine
from engine.eager import EagerEngine
from engine.models.base import Model
from engine.quality import quality
from engine.sampling import SamplingParams
from engine.weights import as_weights, layout, load_model

QUESTION = "Explain in a few sentences how a lighthouse works and why it was useful to sailors."


class Requantised:
    """A checkpoint with every matrix of another in one block format."""

    def __init__(self, model: Model, kind: str) -> None:
        assert model.checkpoint is not None
        self._whole, self._kind = model.checkpoint, GGMLQuantizationType[kind]
        self.architecture, self.config = self._whole.architecture, self._whole.config
        self.path = self._whole.path

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self._whole.shapes())

    def read_into(self, name: str, destination: torch.Tensor) -> None:
        self._whole.read_into(name, destination)
        if destination.ndim == 2:
            raw = quantize(destination.float().numpy(), self._kind)
            destination.copy_(torch.from_numpy(dequantize(raw, self._kind)))

    def blocks(self, name: str) -> tuple[np.ndarray, str] | None:
        values = torch.empty(self.shapes()[name])
        self._whole.read_into(name, values)
        if values.ndim != 2:
            return None
        return quantize(values.numpy(), self._kind), self._kind.name


def requantised(model: Model, kind: str) -> tuple[Model, Model]:
    """(`model` in `kind` on the CPU engine's side, the same dequantised in float32)."""
    checkpoint, c = Requantised(model, kind), model.config
    tensors = {name: tensor.float() for name, tensor in model.weights.tensors().items()}
    for name, parts in layout(c).items():
        if name in tensors and tensors[name].ndim > 1 and len(parts[0][1]) == 2:
            rows = tensors[name].reshape(-1, tensors[name].shape[-1]).numpy()
            raw = quantize(rows, GGMLQuantizationType[kind])
            values = torch.from_numpy(dequantize(raw, GGMLQuantizationType[kind]))
            tensors[name] = values.reshape(tensors[name].shape)
    halves = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    stored = Model(kind, c, as_weights(halves), None, checkpoint)
    return stored, Model("float32", c, as_weights(tensors))


@pytest.fixture(scope="module")
def text(smollm2: Model) -> list[int]:
    """A prompt and 128 greedy tokens."""
    tokenizer = smollm2.tokenizer
    prompt = tokenizer.encode(tokenizer.render([{"role": "user", "content": QUESTION}]))
    run = EagerEngine(smollm2).decode(
        smollm2.new_cache(256), prompt, SamplingParams(max_tokens=128)
    )
    return [*prompt, *(token.id for token in run)]


@pytest.fixture(params=["Q4_1 + Q8_0", "Q4_0", "Q8_0", "bfloat16"])
def pair(
    request: pytest.FixtureRequest, smollm2: Model, smollm2_path: Path
) -> Iterator[tuple[PersistentCpuEngine, Model]]:
    """The engine on weights of one format, in bfloat16 otherwise, and its float32 reference."""
    if request.param in ("Q4_0", "Q8_0"):
        model, reference = requantised(smollm2, request.param)
    else:
        model, reference = load_model(smollm2_path), smollm2
        if request.param == "bfloat16":
            model = Model("bfloat16", model.config, model.weights)
    engine = PersistentCpuEngine(model)
    assert engine.formats == request.param
    yield engine, reference
    engine.close()


@pytest.mark.real
def test_the_gate(pair: tuple[PersistentCpuEngine, Model], text: list[int]) -> None:
    engine, reference = pair
    expected = EagerEngine(reference).logits(reference.new_cache(256), text)
    found = quality(expected, engine.logits(engine.model.new_cache(256), text))
    assert found.passed, found
    conventional = EagerEngine(engine.model).logits(engine.model.new_cache(256), text)
    assert found.mean_kl <= quality(expected, conventional).mean_kl


@pytest.mark.real
def test_prompt_chunks_give_the_same_logits_as_single_tokens(
    pair: tuple[PersistentCpuEngine, Model], text: list[int]
) -> None:
    engine, _ = pair
    one_by_one = engine.logits(engine.model.new_cache(256), text[:30])[-1]
    list(engine.decode(engine.model.new_cache(256), text[:30], SamplingParams(max_tokens=1)))
    at_once = torch.from_numpy(engine.resident.shared.logits[0, : len(one_by_one)].copy())
    torch.testing.assert_close(at_once, one_by_one, rtol=0, atol=1e-3)


def test_the_gate_turns_red() -> None:
    reference = torch.randn(8, 100, generator=torch.Generator().manual_seed(0)) * 3
    assert quality(reference, reference).passed
    swapped = reference.clone()
    best = reference[0].argmax()
    swapped[0, best] -= 10
    found = quality(reference, swapped)
    assert found.changed == 1 and not found.passed
    assert not quality(reference, reference * 1.2).passed
