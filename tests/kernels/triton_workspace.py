"""Small models for the Triton kernels, and where those can run: a GPU, or the interpreter.

Triton decides at its import whether to interpret, so on a machine without a GPU these tests run
in a process of their own, which test_triton_interpreted.py starts.
"""

from __future__ import annotations

import os

import pytest
import torch

from engine.models.base import Model, ModelConfig
from engine.weights import as_weights, empty_weights

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda")
needs_triton = pytest.mark.skipif(
    DEVICE.type == "cpu" and not INTERPRETED,
    reason="no GPU here: runs interpreted, in the process of test_triton_interpreted.py",
)
VOCAB = 320  # not a multiple of what a program of the head owns
POSITIONS = 160


def config(**changes: object) -> ModelConfig:
    """SmolLM2's proportions, nine heads over three and hidden 576, and nothing else of its size."""
    values: dict[str, object] = {
        "family": "llama", "layers": 1, "hidden": 576, "intermediate": 160, "heads": 9,
        "kv_heads": 3, "head_dim": 64, "vocab": VOCAB, "max_positions": POSITIONS,
        "rms_eps": 1e-5, "rope_theta": 1e4, "tied": True,
    }  # fmt: skip
    return ModelConfig(**{**values, **changes})  # type: ignore[arg-type]


CONFIGS = {
    "9 heads over 3": config(),
    "biases": config(hidden=96, heads=6, kv_heads=2, head_dim=16, qkv_bias=True),
    "normed heads": config(hidden=64, heads=4, kv_heads=4, head_dim=32, qk_norm=True, tied=False),
    "odd head size": config(hidden=80, intermediate=56, heads=2, kv_heads=1, head_dim=40),
}


def model_of(shape: ModelConfig, dtype: torch.dtype = torch.float32, seed: int = 0) -> Model:
    """A model of `shape` with every parameter drawn from `seed`, on `DEVICE`."""
    generator = torch.Generator().manual_seed(seed)
    tensors = empty_weights(shape, "cpu", torch.float32)
    for kind, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator)
        if kind.endswith("norm"):
            tensor.copy_(1 + 0.2 * noise)
        else:
            tensor.copy_(noise * (2.0 / tensor.shape[-1]) ** 0.5)
    moved = {kind: tensor.to(DEVICE, dtype) for kind, tensor in tensors.items()}
    return Model("small", shape, as_weights(moved))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Seeded standard normal float32 on `DEVICE`."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def assert_close(name: str, reference: torch.Tensor, out: torch.Tensor, ratio: float) -> None:
    """Relative RMS error at most `ratio`; NaN never passes."""
    assert reference.shape == out.shape, name
    error = ((out.float() - reference.float()).norm() / reference.float().norm()).item()
    assert error <= ratio, f"{name}: relative error {error:.2e} above {ratio:.0e}"
