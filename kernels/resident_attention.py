"""Attention of programs that stay resident: `kernels.attention` on tensor cores.

Keys and values are read once for all query heads that share them and not repeated for each, so
that a part takes all its positions in one round of loads. Queries and weights go in as two numbers
of the cache's dtype each, one carrying what the other rounds off: a tile of a tensor core has 16
rows, of which few groups fill more than half. Sums are float32.

Kernels launched singly are faster with elementwise products (benchmarks/TUNING.md).
"""

import triton
import triton.language as tl

from kernels.norm_rope import rotated_heads
from kernels.words import packed, per_word, unpacked

_EMPTY = tl.constexpr(-1.0e30)  # a maximum of no scores; finite, so that differences are numbers
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def position_tile(
    cache_ptr, start, history, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Keys or values of positions `start`..., [BLOCK_N, BLOCK_D] in words, zero from `history` on.

    `cache_ptr`: [positions, D] of one layer and key head.
    """
    EACH: tl.constexpr = per_word(cache_ptr.dtype.element_ty, D)
    n, d = start + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D // EACH)
    inside = (n < history)[:, None] & (d < D // EACH)[None, :]
    rows_ptr = packed(cache_ptr, D) + n.to(tl.int64)[:, None] * (D // EACH)
    # The cache's address comes as a number, of which nothing is known once it is a pointer, and a
    # hint is kept only by what computes its value. Unaligned, loads are narrow.
    if D % 8 == 0:
        rows_ptr = tl.multiple_of(rows_ptr, [1, 16])
    return tl.load(rows_ptr + d[None, :], mask=inside, other=0)


@triton.jit
def two_parts(x, first_half, DTYPE: tl.constexpr, OPERAND: tl.constexpr):
    """x [ROWS, COLUMNS] rounded to DTYPE in the rows of `first_half`, what that loses elsewhere."""
    rounded = x.to(DTYPE)
    rest = (x - rounded.to(tl.float32)).to(DTYPE)
    return tl.where(first_half[:, None], rounded.to(OPERAND), rest.to(OPERAND))


@triton.jit
def added_parts(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] whose two halves of rows are both the sum of the two."""
    both = tl.sum(tl.reshape(x, [2, ROWS // 2, COLUMNS]), axis=0)
    both = tl.broadcast_to(both[None, :, :], [2, ROWS // 2, COLUMNS])
    return tl.reshape(both, [ROWS, COLUMNS])


@triton.jit
def attention_part(
    k, v, qkv_ptr, q_gain_ptr, k_gain_ptr, cos_ptr, sin_ptr, k_ptr, v_ptr, history, kv_head, split,
    out_ptr, max_ptr, sum_ptr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    EPS: tl.constexpr, QK_NORM: tl.constexpr, SCALE: tl.constexpr, DEVICE: tl.constexpr,
):  # fmt: skip
    """As `kernels.attention.attention_partial`; `k`, `v` are `position_tile`s.

    BLOCK_G is twice a power of two that is at least GROUP; BLOCK_D, BLOCK_G and BLOCK_N are at
    least 16, the sides of a tensor core's tile.
    """
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    OPERAND: tl.constexpr = DTYPE if DEVICE else tl.float32  # interpreted, bfloat16 has no products
    row, d, n = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    first_half, g = row < BLOCK_G // 2, row % (BLOCK_G // 2)
    q = rotated_heads(
        qkv_ptr, kv_head * GROUP + g, g < GROUP, q_gain_ptr, cos_ptr, sin_ptr,
        EPS, D, BLOCK_D, QK_NORM,
    )  # fmt: skip
    one = tl.arange(0, 1)
    k_new = rotated_heads(
        qkv_ptr, HEADS + kv_head + one, one == 0, k_gain_ptr, cos_ptr, sin_ptr,
        EPS, D, BLOCK_D, QK_NORM,
    )  # fmt: skip
    k_new = tl.sum(k_new, axis=0).to(DTYPE)
    v_new = tl.load(qkv_ptr + (HEADS + KV_HEADS + kv_head) * D + d, mask=d < D, other=0.0).to(DTYPE)
    append = (d < D) & (split == 0)
    tl.store(k_ptr + history.to(tl.int64) * D + d, k_new, mask=append)
    tl.store(v_ptr + history.to(tl.int64) * D + d, v_new, mask=append)

    q *= SCALE * _LOG2_E
    own = split + tl.zeros([BLOCK_G], tl.int32) == 0  # split 0 begins with the new token
    row_max = tl.sum(q * k_new.to(tl.float32)[None, :], axis=1)
    row_max = tl.where(own, row_max, _EMPTY)
    row_sum = tl.where(own, 1.0, 0.0)
    row_out = tl.where(own & first_half, 1.0, 0.0)[:, None] * v_new.to(tl.float32)[None, :]
    q = two_parts(q, first_half, DTYPE, OPERAND)
    start = split * BLOCK_N
    # Not `range`: under NumPy 2.5 the interpreter takes no loaded value as a bound.
    while start < history:
        after = start + SPLITS * BLOCK_N
        k_ahead = position_tile(k_ptr, after, history, D, BLOCK_D, BLOCK_N)
        v_ahead = position_tile(v_ptr, after, history, D, BLOCK_D, BLOCK_N)
        keys, values = unpacked(k, DTYPE).to(OPERAND), unpacked(v, DTYPE).to(OPERAND)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
        scores = added_parts(scores, BLOCK_G, BLOCK_N)
        scores = tl.where((start + n < history)[None, :], scores, _EMPTY)
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        shrink = tl.exp2(row_max - new_max)
        weight = tl.exp2(scores - new_max[:, None])
        row_sum = row_sum * shrink + tl.sum(weight, axis=1)
        weight = two_parts(weight, first_half, DTYPE, OPERAND)
        row_out = tl.dot(weight, values, row_out * shrink[:, None], input_precision="ieee")
        k, v, row_max, start = k_ahead, v_ahead, new_max, after

    row_out = added_parts(row_out, BLOCK_G, BLOCK_D)
    present = first_half & (g < GROUP)
    tl.store(max_ptr + g, row_max, mask=present)
    tl.store(sum_ptr + g, row_sum, mask=present)
    tl.store(
        out_ptr + g[:, None] * D + d[None, :], row_out, mask=present[:, None] & (d < D)[None, :]
    )
