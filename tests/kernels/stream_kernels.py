"""Kernels that run one stage of a resident program by itself. Import them inside a test."""

import triton
import triton.language as tl

from kernels.resident_attention import attention_part, position_tile
from kernels.streams import GATED, first_tiles, share, stream


@triton.jit
def stream_kernel(
    x_ptr, gain_ptr, w_ptr, bias_ptr, out_ptr, EPS: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, KIND: tl.constexpr,
    BIAS: tl.constexpr, GRID: tl.constexpr,
):  # fmt: skip
    """One stage, shared out among GRID programs as the persistent kernel does."""
    UNIT: tl.constexpr = ROWS // 2 if KIND == GATED else ROWS
    first, stride, end = share(tl.program_id(0), N, UNIT, GRID)
    tile, upcoming = first_tiles(w_ptr, first, stride, end, N, K, ROWS, BLOCK_K, KIND)
    stream(
        tile, upcoming, first, stride, end, x_ptr, gain_ptr, w_ptr, bias_ptr, out_ptr,
        EPS, N, K, ROWS, BLOCK_K, KIND, BIAS,
    )  # fmt: skip


@triton.jit
def part_kernel(
    qkv_ptr, gain_ptr, cos_ptr, sin_ptr, k_ptr, v_ptr, history, out_ptr, max_ptr, sum_ptr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, POSITIONS: tl.constexpr,
    SCALE: tl.constexpr, DEVICE: tl.constexpr,
):  # fmt: skip
    """Every part of one layer's attention, uncombined."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    part = tl.program_id(0)
    kv_head, split = part // SPLITS, part % SPLITS
    k_ptr += kv_head * POSITIONS * D
    v_ptr += kv_head * POSITIONS * D
    k = position_tile(k_ptr, split * BLOCK_N, history, D, BLOCK_D, BLOCK_N)
    v = position_tile(v_ptr, split * BLOCK_N, history, D, BLOCK_D, BLOCK_N)
    attention_part(
        k, v, qkv_ptr, gain_ptr, gain_ptr, cos_ptr, sin_ptr, k_ptr, v_ptr, history, kv_head,
        split, out_ptr + part * GROUP * D, max_ptr + part * GROUP, sum_ptr + part * GROUP,
        HEADS, KV_HEADS, D, BLOCK_D, GROUP, BLOCK_G, BLOCK_N, SPLITS, 1e-5, False, SCALE, DEVICE,
    )  # fmt: skip
