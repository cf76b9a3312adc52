"""GGUF files: every supported type, llama.cpp's order of rows, RoPE factors, untied heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from transformers import LlamaConfig, LlamaForCausalLM

from engine.checkpoint import open_checkpoint
from engine.eager import EagerEngine
from engine.gguf_file import SUPPORTED_TYPES
from engine.models.base import Model
from engine.weights import load_model
from tests.engine import gguf_files, tiny
from tests.engine.conftest import TinyFactory
from tests.engine.gguf_files import BLOCK_FORMATS, decode_rows, random_blocks, write_gguf


def assert_same_weights(ours: Model, theirs: Model, rtol: float = 0.0, atol: float = 0.0) -> None:
    expected = theirs.weights.tensors()
    actual = ours.weights.tensors()
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor, expected[name], rtol=rtol, atol=atol, msg=name)


def stored(values: torch.Tensor, kind: str) -> torch.Tensor:
    """What is left of `values` once stored as `kind`."""
    if values.ndim == 1 or kind == "F32":
        return values
    if kind in ("F16", "BF16"):
        return values.to(torch.float16 if kind == "F16" else torch.bfloat16).float()
    rows = quantize(values.numpy(), GGMLQuantizationType[kind])
    return torch.from_numpy(decode_rows(rows, kind).astype(np.float32))


def through(reference: Any, kind: str, folder: Path) -> Model:
    """Ours of `reference` with every parameter rounded as `kind` stores it."""
    copy = type(reference)(reference.config).eval()
    copy.load_state_dict({n: stored(t, kind) for n, t in reference.state_dict().items()})
    return load_model(tiny.save(copy, folder), dtype=torch.float32)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_reads_as_from_safetensors(
    tiny_of: TinyFactory, family: str, tmp_path: Path
) -> None:
    expected = tiny_of(family)
    model = load_model(write_gguf(expected.reference, tmp_path / "m.gguf"), dtype=torch.float32)
    assert_same_weights(model, expected.model)
    assert model.config.tied == expected.model.config.tied
    assert model.config.qk_norm == (family == "qwen3")
    prompt = tiny.random_ids(150)
    logits = EagerEngine(model).logits(model.new_cache(), prompt)
    reference = tiny.reference_logits(expected.reference, prompt)
    assert (logits - reference).abs().max() <= 1e-3


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_every_type_decodes_as_its_format_says(
    tiny_of: TinyFactory, kind: str, tmp_path: Path
) -> None:
    reference = tiny_of("llama").reference
    model = load_model(write_gguf(reference, tmp_path / "m.gguf", kind), dtype=torch.float32)
    assert_same_weights(model, through(reference, kind, tmp_path / "hf"), rtol=1e-6, atol=1e-7)


def test_k_types_decode_as_their_formats_say(tmp_path: Path) -> None:
    """As in a Q4_K_M file: most matrices Q4_K; values, down projection and head Q6_K."""
    shape = tiny.shape_of(256, 256, 4, 2, False, num_hidden_layers=1)
    reference = LlamaForCausalLM(LlamaConfig(**shape)).eval()
    blocks, state = {}, reference.state_dict()
    for seed, (name, tensor) in enumerate(state.items()):
        if tensor.ndim == 2:
            six = any(part in name for part in ("v_proj", "down_proj", "lm_head"))
            rows, columns = tensor.shape
            blocks[name] = random_blocks("Q6_K" if six else "Q4_K", rows, columns, seed)
            state[name] = torch.from_numpy(decode_rows(*blocks[name]).astype(np.float32))
    reference.load_state_dict(state)
    path = write_gguf(reference, tmp_path / "m.gguf", blocks=blocks)
    model = load_model(path, dtype=torch.float32)
    expected = load_model(tiny.save(reference, tmp_path / "hf"), dtype=torch.float32)
    assert_same_weights(model, expected, rtol=1e-5, atol=1e-6)
    prompt = tiny.random_ids(65)
    logits = EagerEngine(model).logits(model.new_cache(), prompt)
    assert (logits - tiny.reference_logits(reference, prompt)).abs().max() <= 1e-3


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_the_decoders_here_agree_with_the_library(kind: str) -> None:
    if kind.endswith("K"):
        rows, _ = random_blocks(kind, 8, 512, seed=3)
    else:
        values = np.random.default_rng(3).standard_normal((8, 512), dtype=np.float32)
        rows = quantize(values, GGMLQuantizationType[kind])
    library = dequantize(rows, GGMLQuantizationType[kind])
    np.testing.assert_allclose(decode_rows(rows, kind), library, rtol=1e-5, atol=1e-6)


def test_every_supported_type_is_tested() -> None:
    assert set(SUPPORTED_TYPES) == {"F32", "F16", "BF16", *BLOCK_FORMATS}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shape", [(5000,), (9000, 2)])
def test_tensors_longer_than_one_read(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    """Reading goes by rows in groups; a vector's bytes are not its rows."""
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    path, name = tmp_path / "m.gguf", "output_norm.weight"
    writer = GGUFWriter(path, "llama")
    writer.add_head_count(1)
    data = values.astype(np.float16) if kind == "F16" else values
    if kind == "BF16":
        data = quantize(values, GGMLQuantizationType.BF16)
    writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])
    gguf_files.finish(writer)
    destination = torch.empty(shape)
    open_checkpoint(path).read_into("model.norm.weight", destination)
    expected = torch.from_numpy(values)
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    assert torch.equal(destination, expected.to(dtype).float())


def test_head_sizes_that_are_not_hidden_over_heads(tiny_of: TinyFactory, tmp_path: Path) -> None:
    model = load_model(write_gguf(tiny_of("qwen3").reference, tmp_path / "m.gguf"))
    assert (model.config.head_dim, model.config.hidden // model.config.heads) == (32, 16)
    assert model.dtype == torch.bfloat16  # the default


@pytest.mark.parametrize("part", ["mlp.down_proj", "self_attn.q_proj", "self_attn.k_proj"])
def test_blocks_are_given_in_the_order_of_hugging_face(
    tiny_of: TinyFactory, tmp_path: Path, part: str
) -> None:
    reference = tiny_of("llama").reference
    checkpoint = open_checkpoint(write_gguf(reference, tmp_path / "m.gguf", "Q4_1"))
    name = f"model.layers.1.{part}.weight"
    blocks = checkpoint.blocks(name)
    assert blocks and blocks[1] == "Q4_1" and blocks[0].dtype == np.uint8
    expected = stored(reference.state_dict()[name], "Q4_1").numpy()
    np.testing.assert_allclose(decode_rows(*blocks), expected, rtol=1e-6)
    assert checkpoint.blocks("model.norm.weight") is None
