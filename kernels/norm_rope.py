"""Rotary embedding of query and key heads, with Qwen3's RMSNorm on each head where it exists."""

import triton
import triton.language as tl

_NEAR = tl.constexpr("")  # the default cache modifier


@triton.jit
def rotated_heads(
    x_ptr,  # float32 [heads, D]
    heads,  # int32 [ROWS]: which of them
    present,  # bool [ROWS]
    gain_ptr,  # [D]; read only with NORM
    cos_ptr,  # float32 [D // 2] of this position
    sin_ptr,
    EPS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,  # D rounded up to a power of two
    NORM: tl.constexpr,
    CACHE: tl.constexpr = _NEAR,
):
    """float32 [ROWS, BLOCK_D]: x * cos + rotate_half(x) * sin; zero beyond D and where absent."""
    HALF: tl.constexpr = D // 2
    d = tl.arange(0, BLOCK_D)
    partner = tl.where(d < HALF, d + HALF, d - HALF)
    inside = present[:, None] & (d < D)[None, :]
    row_ptr = x_ptr + heads[:, None] * D
    x = tl.load(row_ptr + d[None, :], mask=inside, other=0.0, cache_modifier=CACHE)
    y = tl.load(row_ptr + partner[None, :], mask=inside, other=0.0, cache_modifier=CACHE)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + EPS)[:, None]
        gain = tl.load(gain_ptr + d, mask=d < D, other=0.0).to(tl.float32)
        partner_gain = tl.load(gain_ptr + partner, mask=d < D, other=0.0).to(tl.float32)
        x, y = x * scale * gain[None, :], y * scale * partner_gain[None, :]
    cos = tl.load(cos_ptr + d % HALF, mask=d < D, other=0.0)
    sin = tl.load(sin_ptr + d % HALF, mask=d < D, other=0.0)
    sin = tl.where(d < HALF, -sin, sin)
    return x * cos[None, :] + y * sin[None, :]
