"""From model files to a `Model`: checked whole before anything is allocated, then filled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from engine.checkpoint import Checkpoint, open_checkpoint
from engine.errors import UnpausedError
from engine.models import family_of
from engine.models.base import Model, ModelConfig, Weights
from engine.tokenizer import load_tokenizer

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)
Inspected = tuple[Checkpoint, ModelConfig]  # a model whose weights have not been read
_HEADROOM = 1.1  # scratch while loading, KV cache, activations
# Of a limited address space: allocators and the stacks of threads reserve more than they use.
_RESERVED_BYTES = 400_000_000
_LAYER = "model.layers.{layer}."


def load_model(
    path: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    name: str | None = None,
    progress: Progress | None = None,
    inspected: Inspected | None = None,
) -> Model:
    """Load a GGUF file or a Hugging Face folder with its tokenizer.

    `inspected`: what `inspect_model` has just returned for it, if it has been called already.
    Raises `UnpausedError`, before reading any weight, for an unsupported architecture or
    quantisation, missing or misshapen tensors, a missing tokenizer, or a model that does not fit
    in memory.
    """
    name = name or path.absolute().name.removesuffix(".gguf")
    checkpoint, config = inspected or inspect_model(path, device, dtype, name)
    tokenizer = load_tokenizer(checkpoint)
    weights = _fill(config, checkpoint, torch.device(device), dtype, progress)
    return Model(name, config, weights, tokenizer, checkpoint)


def inspect_model(
    path: Path, device: torch.device | str, dtype: torch.dtype, name: str
) -> Inspected:
    """Open a model and check everything that can be known without reading a weight.

    Raises `UnpausedError` as `load_model` does, but for the tokenizer.
    """
    checkpoint = open_checkpoint(path)
    config = family_of(checkpoint.architecture).config(checkpoint.config)
    # Some files say "tied" and carry a head as well; transformers uses it, and so do we.
    config = replace(config, tied=config.tied and "lm_head.weight" not in checkpoint.shapes())
    _check_shapes(config, checkpoint)
    check_memory(config, torch.device(device), dtype, name)
    return checkpoint, config


def layout(config: ModelConfig) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Each field of `Weights` as the checkpoint tensors stacked into it: (name, shape).

    Names with `{layer}` exist once a layer; several names of one kind are joined by rows.
    """
    h, i, d, v = config.hidden, config.intermediate, config.head_dim, config.vocab
    q, kv = config.q_size, config.kv_size
    qkv = (("q", q), ("k", kv), ("v", kv))
    attention, mlp = f"{_LAYER}self_attn.", f"{_LAYER}mlp."
    kinds: dict[str, list[tuple[str, tuple[int, ...]]]] = {
        "embed": [("model.embed_tokens.weight", (v, h))],
        "attn_norm": [(f"{_LAYER}input_layernorm.weight", (h,))],
        "qkv": [(f"{attention}{part}_proj.weight", (rows, h)) for part, rows in qkv],
        "o": [(f"{attention}o_proj.weight", (h, q))],
        "mlp_norm": [(f"{_LAYER}post_attention_layernorm.weight", (h,))],
        "gate_up": [(f"{mlp}gate_proj.weight", (i, h)), (f"{mlp}up_proj.weight", (i, h))],
        "down": [(f"{mlp}down_proj.weight", (h, i))],
        "norm": [("model.norm.weight", (h,))],
    }  # fmt: skip
    if config.qkv_bias:
        kinds["qkv_bias"] = [(f"{attention}{part}_proj.bias", (rows,)) for part, rows in qkv]
    if config.qk_norm:
        kinds["q_norm"] = [(f"{attention}q_norm.weight", (d,))]
        kinds["k_norm"] = [(f"{attention}k_norm.weight", (d,))]
    if not config.tied:
        kinds["lm_head"] = [("lm_head.weight", (v, h))]
    return kinds


def empty_weights(
    config: ModelConfig, device: torch.device | str, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Unfilled tensors for every kind of `layout`, stacked over layers."""
    made = {}
    for kind, parts in layout(config).items():
        rows = sum(shape[0] for _, shape in parts)
        stack = (config.layers,) if "{layer}" in parts[0][0] else ()
        shape = (*stack, rows, *parts[0][1][1:])
        made[kind] = torch.empty(shape, dtype=dtype, device=device)
    return made


def as_weights(tensors: Mapping[str, torch.Tensor]) -> Weights:
    """`Weights` from tensors by kind; without a head of its own the embedding is the head."""
    optional: dict[str, Any] = dict.fromkeys(("qkv_bias", "q_norm", "k_norm"))
    return Weights(**{**optional, "lm_head": tensors["embed"], **tensors})


def _sources(config: ModelConfig) -> Iterator[tuple[str, int | None, int, str, tuple[int, ...]]]:
    """Every checkpoint tensor and its place: (kind, layer, first row, name, shape)."""
    for kind, parts in layout(config).items():
        layers = range(config.layers) if "{layer}" in parts[0][0] else [None]
        for layer in layers:
            row = 0
            for name, shape in parts:
                yield kind, layer, row, name.format(layer=layer), shape
                row += shape[0]


def _check_shapes(config: ModelConfig, checkpoint: Checkpoint) -> None:
    shapes = checkpoint.shapes()
    for _, _, _, name, shape in _sources(config):
        if name not in shapes:
            raise UnpausedError(f"{checkpoint.path} lacks the tensor {name}: it is incomplete")
        if shapes[name] != shape:
            raise UnpausedError(
                f"{checkpoint.path}: {name} is {list(shapes[name])} where the config "
                f"says {list(shape)}"
            )


def check_memory(config: ModelConfig, device: torch.device, dtype: torch.dtype, name: str) -> None:
    """Raise `UnpausedError` unless weights of this shape fit into what is free on `device`."""
    elements = sum(t.numel() for t in empty_weights(config, "meta", dtype).values())
    needed = int(elements * dtype.itemsize * _HEADROOM)
    if device.type == "cuda":
        free, where, limit = torch.cuda.mem_get_info(device)[0], "on the GPU", ""
    else:
        free, where, limit = free_bytes(), "in memory", ", or raise what limits it (ulimit -v)"
    if needed > free:
        raise UnpausedError(
            f"{name} needs {needed / 1e9:.1f} GB {where} and {free / 1e9:.1f} GB are free: "
            f"choose a smaller model or close other programs{limit}"
        )


def free_bytes() -> int:
    """Memory that this process may still take: of the machine's, or of its own limit (ulimit -v).

    Some libraries abort the process where memory ends, so a limit is looked at beforehand.
    """
    available = psutil.virtual_memory().available
    if hasattr(psutil, "RLIMIT_AS"):  # Linux
        process = psutil.Process()
        limit = process.rlimit(psutil.RLIMIT_AS)[0]
        if limit != psutil.RLIM_INFINITY:
            available = min(available, limit - process.memory_info().vms - _RESERVED_BYTES)
    return max(0, available)


def _fill(
    config: ModelConfig,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress | None,
) -> Weights:
    tensors = empty_weights(config, device, dtype)
    total, done = sum(t.nbytes for t in tensors.values()), 0

    def read(source: tuple[str, int | None, int, str, tuple[int, ...]]) -> int:
        kind, layer, row, name, shape = source
        whole = tensors[kind] if layer is None else tensors[kind][layer]
        destination = whole[row : row + shape[0]]
        if device.type == "cpu":
            checkpoint.read_into(name, destination)
        else:
            staged = torch.empty(shape, dtype=dtype)
            checkpoint.read_into(name, staged)
            destination.copy_(staged)
        return destination.nbytes

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for size in pool.map(read, _sources(config)):
            done += size
            if progress:
                progress(done, total)
    return as_weights(tensors)
