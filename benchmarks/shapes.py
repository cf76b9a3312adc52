"""Exact shapes of published models with seeded random weights: for speed, never for text."""

from __future__ import annotations

import torch

from engine.models.base import Model, ModelConfig
from engine.weights import as_weights, empty_weights

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

SHAPES: dict[str, ModelConfig] = {
    "llama-3.2-1b": ModelConfig(
        family="llama", layers=16, hidden=2048, intermediate=8192, heads=32, kv_heads=8,
        head_dim=64, vocab=128256, max_positions=8192, rms_eps=1e-5, rope_theta=500000.0,
        rope_scaling=_LLAMA3_ROPE, tied=True,
    ),
    "llama-3.1-8b": ModelConfig(
        family="llama", layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8,
        head_dim=128, vocab=128256, max_positions=8192, rms_eps=1e-5, rope_theta=500000.0,
        rope_scaling={**_LLAMA3_ROPE, "factor": 8.0},
    ),
    "qwen3-0.6b": ModelConfig(
        family="qwen3", layers=28, hidden=1024, intermediate=3072, heads=16, kv_heads=8,
        head_dim=128, vocab=151936, max_positions=8192, rms_eps=1e-6, rope_theta=1e6,
        tied=True, qk_norm=True,
    ),
    "smollm2-135m": ModelConfig(
        family="llama", layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3,
        head_dim=64, vocab=49152, max_positions=8192, rms_eps=1e-5, rope_theta=100000.0,
        tied=True,
    ),
}  # fmt: skip


def random_model(
    name: str, device: torch.device | str, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> Model:
    """Shape `name` (or a path-free variant of it) with every weight drawn from `seed`.

    Matrices have variance 2 / columns and gains lie around 1, so that activations keep their
    size and logits are about as far apart as a trained model's.
    """
    config = SHAPES[name]
    tensors = empty_weights(config, device, dtype)
    generator = torch.Generator(device).manual_seed(seed)
    for kind, tensor in tensors.items():
        for part in tensor if tensor.ndim == 3 else [tensor]:
            _draw(kind, part, generator)
    return Model(f"{name} (random weights, seed {seed})", config, as_weights(tensors))


def _draw(kind: str, part: torch.Tensor, generator: torch.Generator) -> None:
    if kind == "norm":
        part.normal_(3.0, 0.5, generator=generator)
    elif kind.endswith("norm"):
        part.normal_(1.0, 0.2, generator=generator)
    elif kind == "qkv_bias":
        part.normal_(0.0, 0.5, generator=generator)
    else:
        part.normal_(0.0, (2.0 / part.shape[-1]) ** 0.5, generator=generator)
