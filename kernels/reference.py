"""The PyTorch twin of every stage: what the kernels compute, in the fewest clear operations.

Names and order are those of kernels/stages.py. All tensors are float32 unless said otherwise;
T = tokens of a pass, H = hidden, D = head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

QUANT = 32  # values that share a scale
LARGEST = 254 * 127 + 126


def embed(table: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """[T, H]: rows of `table` [vocab, H]."""
    return table[token_ids].float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square normalisation over the last dimension (Zhang and Sennrich, 2019)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[T, rows]: x [T, n] times weight [rows, n], any float dtype, accumulated in float32."""
    return x @ weight.float().T


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(integers [T, blocks, 32], scales [T, blocks]) of x [T, n]: each block's largest is 32,384.

    That is the largest number whose two digits in base 254, rounded, lie within -127..127.
    """
    blocks = x.reshape(len(x), -1, QUANT)
    largest = blocks.abs().amax(-1)
    inverse = torch.where(largest > 0, LARGEST / largest, 0.0)
    return (blocks * inverse[..., None]).round(), largest / LARGEST


def block_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`linear` of the quantised activations; weight [rows, n]: the blocks, dequantised."""
    quants, scales = quantise(x)
    return linear((quants * scales[..., None]).reshape(x.shape), weight)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads: x [T, heads, D]; cos, sin [T, D / 2], the halves of each head paired."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One head over its whole context: query [D], keys and values [positions, D]; returns [D]."""
    weights = torch.softmax(keys.float() @ query * query.shape[-1] ** -0.5, dim=-1)
    return weights @ values.float()


def silu_multiply(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """SwiGLU's product (Shazeer, 2020)."""
    return F.silu(gate) * up
