"""Attention of a pass of several tokens: their queries share one reading of keys and values.

As `kernels.attention`, a key head's history is divided among programs whose partial results are
added up in the order of the splits. The rows of a tile are the pairs (column, query head of the
group), so tensor cores multiply keys and values with all of them at once; queries and weights go
in as two halves each, high and low, as in `kernels.columns`.

The pass's own keys and values, rounded as the cache rounds them, are a tile of their own, which
split 0 attends to, causally, while it appends them.
"""

import triton
import triton.language as tl

from kernels.columns import dot

_EMPTY = tl.constexpr(-1.0e30)  # a maximum of no scores; finite, so that differences are numbers
_LOG2_E = tl.constexpr(1.4426950408889634)
OWN = tl.constexpr(16)  # rows of the tile of the pass's own keys: the least that can be multiplied


@triton.jit
def history_block(
    cache_ptr,  # [positions, D] of one layer and key head
    start, history,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys or values from `start` on, [BLOCK_N, BLOCK_D]; zero from `history` on."""
    n, d = start + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    inside = (n < history)[:, None] & (d < D)[None, :]
    return tl.load(cache_ptr + n.to(tl.int64)[:, None] * D + d[None, :], mask=inside, other=0.0)


@triton.jit
def rotated_rows(
    row_ptr,  # pointers [ROWS] to heads of float32 [D]
    present,  # bool [ROWS]
    positions,  # int32 [ROWS]
    gain_ptr,  # [D]; read only with NORM
    cos_ptr,  # float32 [positions, D // 2]
    sin_ptr,
    EPS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """float32 [ROWS, BLOCK_D]: as `kernels.norm_rope.rotated_heads`, each row at its position."""
    HALF: tl.constexpr = D // 2
    d = tl.arange(0, BLOCK_D)
    partner = tl.where(d < HALF, d + HALF, d - HALF)
    inside = present[:, None] & (d < D)[None, :]
    x = tl.load(row_ptr[:, None] + d[None, :], mask=inside, other=0.0)
    y = tl.load(row_ptr[:, None] + partner[None, :], mask=inside, other=0.0)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + EPS)[:, None]
        gain = tl.load(gain_ptr + d, mask=d < D, other=0.0).to(tl.float32)
        partner_gain = tl.load(gain_ptr + partner, mask=d < D, other=0.0).to(tl.float32)
        x, y = x * scale * gain[None, :], y * scale * partner_gain[None, :]
    angle = positions[:, None] * HALF + (d % HALF)[None, :]
    cos = tl.load(cos_ptr + angle, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=inside, other=0.0)
    return x * cos + y * tl.where(d < HALF, -1.0, 1.0)[None, :] * sin


@triton.jit
def dot_in_halves(x, y, total):
    """total + x @ y; x float32 in two halves of y's dtype."""
    high = x.to(y.dtype)
    total = dot(high, y, total)
    if y.dtype != tl.float32:
        low = (x - high.to(tl.float32)).to(y.dtype)
        total = dot(low, y, total)
    return total


@triton.jit
def attend(q, k, v, visible, row_max, row_sum, row_out, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """One tile of an online softmax in base 2: `visible` bool [ROWS, BLOCK]."""
    scores = dot_in_halves(q, tl.trans(k), tl.zeros([ROWS, BLOCK], tl.float32))
    scores = tl.where(visible, scores, _EMPTY)
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    shrink = tl.exp2(row_max - new_max)
    weight = tl.where(visible, tl.exp2(scores - new_max[:, None]), 0.0)
    row_sum = row_sum * shrink + tl.sum(weight, axis=1)
    return new_max, row_sum, dot_in_halves(weight, v, row_out * shrink[:, None])


@triton.jit
def attention_of_columns(
    k, v,  # history_block of this split's first block, loaded before any wait
    qkv_ptr,  # float32 [COLUMNS, (HEADS + 2 * KV_HEADS) * D]
    q_gain_ptr, k_gain_ptr,  # [D] with QK_NORM
    cos_ptr, sin_ptr,  # float32 [LIMIT, D // 2]
    k_ptr, v_ptr,  # [positions, D] of this layer and key head
    first,  # the position of column 0
    history,  # positions before it, at most those of the cache
    positions, kv_head, split,
    out_ptr,  # float32 [COLUMNS, SPLITS, GROUP, D] of this key head: not normalised
    max_ptr, sum_ptr,  # float32 [COLUMNS, SPLITS, GROUP]; maxima in base 2
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr, LIMIT: tl.constexpr, EPS: tl.constexpr, QK_NORM: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    """Attention of all columns of one key head's query group to one split of the history.

    A column that does not fit into the cache is not appended; what it draws means nothing.
    """
    ROWS: tl.constexpr = COLUMNS * BLOCK_G
    STRIDE: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    rows, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    column, g = rows // BLOCK_G, rows % BLOCK_G
    q = rotated_rows(
        qkv_ptr + column * STRIDE + (kv_head * GROUP + g) * D, g < GROUP,
        tl.minimum(first + column, LIMIT - 1), q_gain_ptr, cos_ptr, sin_ptr,
        EPS, D, BLOCK_D, QK_NORM,
    )  # fmt: skip
    q *= SCALE * _LOG2_E
    row_max = tl.full([ROWS], _EMPTY, tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    row_out = tl.zeros([ROWS, BLOCK_D], tl.float32)
    if split == 0:
        c = tl.arange(0, OWN)
        own = first + c
        k_new = rotated_rows(
            qkv_ptr + c * STRIDE + (HEADS + kv_head) * D, c < COLUMNS,
            tl.minimum(own, LIMIT - 1), k_gain_ptr, cos_ptr, sin_ptr, EPS, D, BLOCK_D, QK_NORM,
        ).to(k_ptr.dtype.element_ty)  # fmt: skip
        inside = (c < COLUMNS)[:, None] & (d < D)[None, :]
        v_from = qkv_ptr + c[:, None] * STRIDE + (HEADS + KV_HEADS + kv_head) * D + d[None, :]
        v_new = tl.load(v_from, mask=inside, other=0.0).to(v_ptr.dtype.element_ty)
        to = own.to(tl.int64)[:, None] * D + d[None, :]
        tl.store(k_ptr + to, k_new, mask=inside & (own < positions)[:, None])
        tl.store(v_ptr + to, v_new, mask=inside & (own < positions)[:, None])
        row_max, row_sum, row_out = attend(
            q, k_new, v_new, c[None, :] <= column[:, None], row_max, row_sum, row_out, ROWS, OWN
        )
    start = split * BLOCK_N
    n = tl.arange(0, BLOCK_N)
    while start < history:
        after = start + SPLITS * BLOCK_N
        k_ahead = history_block(k_ptr, after, history, D, BLOCK_D, BLOCK_N)
        v_ahead = history_block(v_ptr, after, history, D, BLOCK_D, BLOCK_N)
        visible = (start + n < history)[None, :] & (rows >= 0)[:, None]
        row_max, row_sum, row_out = attend(
            q, k, v, visible, row_max, row_sum, row_out, ROWS, BLOCK_N
        )
        k, v, start = k_ahead, v_ahead, after

    to = (column * SPLITS + split) * GROUP + g
    tl.store(max_ptr + to, row_max, mask=g < GROUP)
    tl.store(sum_ptr + to, row_sum, mask=g < GROUP)
    inside = (g < GROUP)[:, None] & (d < D)[None, :]
    tl.store(out_ptr + to[:, None] * D + d[None, :], row_out, mask=inside)
