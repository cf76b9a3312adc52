"""Decode attention over a split context: RoPE, KV append, partials, and a combine.

Flash-Decoding (Dao et al., 2023): each key head's history is divided among programs; the last
of them to finish adds up their partial results, always in the order of the splits, so who is
last does not change a bit. Softmax runs in base 2 and online (Milakov and Gimelshein, 2018), per
row of the tile, so that warps exchange nothing until the end.

The new token's key and value never make the round trip through memory: split 0 attends to them
directly, rounded as the cache rounds them, while it appends them.
"""

import triton
import triton.language as tl

from kernels.norm_rope import rotated_heads

_NEAR = tl.constexpr("")  # the default cache modifier
_EMPTY = tl.constexpr(-1.0e30)  # a maximum of no scores; finite, so that differences are numbers
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def split_bounds(history, split, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """(first position, end, number of splits in use) for `history` positions; split 0 always is."""
    chunk = tl.cdiv(tl.cdiv(history, SPLITS), BLOCK_N) * BLOCK_N
    chunk = tl.maximum(chunk, BLOCK_N)
    start = split * chunk
    return start, tl.minimum(start + chunk, history), tl.maximum(tl.cdiv(history, chunk), 1)


@triton.jit
def attention_partial(
    qkv_ptr,  # float32 [heads + 2 * kv_heads, D]
    q_gain_ptr,  # [D] with QK_NORM
    k_gain_ptr,
    cos_ptr,  # float32 [D // 2] of this position
    sin_ptr,
    k_ptr,  # [positions, D] of this layer and key head
    v_ptr,
    position,  # of the new token
    start,  # history of this split
    end,
    kv_head,
    split,
    out_ptr,  # float32 [GROUP, D]: this split's weighted values, not normalised
    max_ptr,  # float32 [GROUP]: its maximum, base 2
    sum_ptr,  # float32 [GROUP]
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,  # query heads per key head
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EPS: tl.constexpr,
    QK_NORM: tl.constexpr,
    SCALE: tl.constexpr,
    CACHE: tl.constexpr = _NEAR,
):
    """Attention of one key head's query group to one split of the history.

    The tile has a row for each pair (position, query head), position by position: keys and values
    are read once and shared, and everything but the end stays within eight lanes of a warp.
    """
    ROWS: tl.constexpr = BLOCK_N * BLOCK_G
    rows, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    n, g = rows // BLOCK_G, rows % BLOCK_G
    q = rotated_heads(
        qkv_ptr, kv_head * GROUP + g, g < GROUP, q_gain_ptr, cos_ptr, sin_ptr,
        EPS, D, BLOCK_D, QK_NORM, CACHE,
    )  # fmt: skip
    q *= SCALE * _LOG2_E
    one = tl.arange(0, 1)
    k_new = rotated_heads(
        qkv_ptr, HEADS + kv_head + one, one == 0, k_gain_ptr, cos_ptr, sin_ptr,
        EPS, D, BLOCK_D, QK_NORM, CACHE,
    )  # fmt: skip
    k_new = tl.sum(k_new, axis=0).to(k_ptr.dtype.element_ty)
    v_new = tl.load(
        qkv_ptr + (HEADS + KV_HEADS + kv_head) * D + d, mask=d < D, other=0.0, cache_modifier=CACHE
    ).to(v_ptr.dtype.element_ty)
    append = (d < D) & (split == 0)
    tl.store(k_ptr + position.to(tl.int64) * D + d, k_new, mask=append)
    tl.store(v_ptr + position.to(tl.int64) * D + d, v_new, mask=append)

    own = (n == 0) & (split == 0)  # the rows that begin with the new token
    row_max = tl.sum(q * k_new.to(tl.float32)[None, :], axis=1)
    row_max = tl.where(own, row_max, _EMPTY)
    row_sum = tl.where(own, 1.0, 0.0)
    row_out = row_sum[:, None] * v_new.to(tl.float32)[None, :]
    # Not `range`: under NumPy 2.5 the interpreter takes no loaded value as a bound.
    while start < end:
        valid = start + n < end
        offsets = (start + n).to(tl.int64)[:, None] * D + d[None, :]
        inside = valid[:, None] & (d < D)[None, :]
        k = tl.load(k_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        scores = tl.where(valid, tl.sum(k * q, axis=1), _EMPTY)
        new_max = tl.maximum(row_max, scores)
        shrink = tl.exp2(row_max - new_max)
        weight = tl.where(valid, tl.exp2(scores - new_max), 0.0)
        row_sum = row_sum * shrink + weight
        row_out = row_out * shrink[:, None] + weight[:, None] * v
        row_max = new_max
        start += BLOCK_N

    by_position = tl.reshape(row_max, [BLOCK_N, BLOCK_G])
    top = tl.max(by_position, axis=0)
    rescale = tl.exp2(by_position - top[None, :])
    total = tl.sum(tl.reshape(row_sum, [BLOCK_N, BLOCK_G]) * rescale, axis=0)
    row_out *= tl.reshape(rescale, [ROWS])[:, None]
    out = tl.sum(tl.reshape(row_out, [BLOCK_N, BLOCK_G * BLOCK_D]), axis=0)
    heads = tl.arange(0, BLOCK_G)
    tl.store(max_ptr + heads, top, mask=heads < GROUP)
    tl.store(sum_ptr + heads, total, mask=heads < GROUP)
    column = tl.arange(0, BLOCK_G * BLOCK_D)
    head, d = column // BLOCK_D, column % BLOCK_D
    tl.store(out_ptr + head * D + d, out, mask=(head < GROUP) & (d < D))


@triton.jit
def combine_splits(
    out_ptr,  # float32 [SPLITS, GROUP, D] of this key head
    max_ptr,  # float32 [SPLITS, GROUP]
    sum_ptr,
    used,  # splits that hold something
    attended_ptr,  # float32 [GROUP, D]
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_S: tl.constexpr,  # SPLITS rounded up to a power of two
):
    """Add up the splits' partial results of one key head. Reads past L1: others wrote them."""
    s, d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    valid = s < used
    for g in tl.static_range(GROUP):
        top = tl.load(max_ptr + s * GROUP + g, mask=valid, other=_EMPTY, cache_modifier=".cg")
        total = tl.load(sum_ptr + s * GROUP + g, mask=valid, other=0.0, cache_modifier=".cg")
        out = tl.load(
            out_ptr + (s * GROUP + g)[:, None] * D + d[None, :],
            mask=valid[:, None] & (d < D)[None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        weight = tl.exp2(top - tl.max(top, axis=0))
        attended = tl.sum(out * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
        tl.store(attended_ptr + g * D + d, attended, mask=d < D)
