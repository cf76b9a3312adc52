"""Rotary position embedding (Su et al., RoFormer, 2021), half-split as Hugging Face lays it out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from engine.models.base import ModelConfig


def rope_table(
    config: ModelConfig, positions: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each [positions, head_dim] in `dtype`, computed in float32.

    The second half of head_dim repeats the first: x * cos + rotate_half(x) * sin.
    """
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    inverse_frequency = 1.0 / (config.rope_theta**exponent)
    if config.rope_scaling:
        inverse_frequency = _scale(inverse_frequency, config.rope_scaling)
    angle = torch.arange(positions).float()[:, None] * inverse_frequency[None, :]
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)


def _scale(inverse_frequency: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    if "factors" in scaling:
        return inverse_frequency / torch.tensor(scaling["factors"], dtype=torch.float32)
    return _llama3(inverse_frequency, scaling)


def _llama3(inverse_frequency: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Llama 3.1's rule: slow frequencies divided by `factor`, fast ones kept, a ramp between."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    trained = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inverse_frequency
    blend = ((trained / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * inverse_frequency / factor + blend * inverse_frequency
