"""Decode attention over a split context: RoPE, KV append, partials, and a combine.

Flash-Decoding (Dao et al., 2023): each key head's history is divided among programs, whose
partial results are added up in the order of the splits, so who is last does not change a bit.
Softmax runs in base 2 and online (Milakov and Gimelshein, 2018), per row of the tile, so that
warps exchange nothing until the end.

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
def splits_used(history, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """How many splits hold something: at least the first, which has the new token."""
    return tl.maximum(tl.minimum(tl.cdiv(history, BLOCK_N), SPLITS), 1)


@triton.jit
def history_tile(
    cache_ptr,  # [positions, D] of one layer and key head
    start,
    history,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Keys or values from `start` on, [BLOCK_N * BLOCK_G, BLOCK_D], each repeated for its group."""
    n, d = start + tl.arange(0, BLOCK_N * BLOCK_G) // BLOCK_G, tl.arange(0, BLOCK_D)
    inside = (n < history)[:, None] & (d < D)[None, :]
    return tl.load(cache_ptr + n.to(tl.int64)[:, None] * D + d[None, :], mask=inside, other=0.0)


@triton.jit
def attention_partial(
    k,  # history_tile of this split's first block, loaded before any wait
    v,
    qkv_ptr,  # float32 [heads + 2 * kv_heads, D]
    q_gain_ptr,  # [D] with QK_NORM
    k_gain_ptr,
    cos_ptr,  # float32 [D // 2] of this position
    sin_ptr,
    k_ptr,  # [positions, D] of this layer and key head
    v_ptr,
    history,  # positions before the new token
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
    SPLITS: tl.constexpr,
    EPS: tl.constexpr,
    QK_NORM: tl.constexpr,
    SCALE: tl.constexpr,
    CACHE: tl.constexpr = _NEAR,
):
    """Attention of one key head's query group to one split of the history.

    Split s has blocks s, s + SPLITS, ..., so that its first block lies where it lies whatever
    the context. The tile has a row for each pair (position, query head), position by position:
    keys and values are read once and shared, and all but the end stays within a few lanes.
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
    tl.store(k_ptr + history.to(tl.int64) * D + d, k_new, mask=append)
    tl.store(v_ptr + history.to(tl.int64) * D + d, v_new, mask=append)

    own = (n == 0) & (split == 0)  # the rows that begin with the new token
    row_max = tl.sum(q * k_new.to(tl.float32)[None, :], axis=1)
    row_max = tl.where(own, row_max, _EMPTY)
    row_sum = tl.where(own, 1.0, 0.0)
    row_out = row_sum[:, None] * v_new.to(tl.float32)[None, :]
    start = split * BLOCK_N
    # Not `range`: under NumPy 2.5 the interpreter takes no loaded value as a bound.
    while start < history:
        after = start + SPLITS * BLOCK_N
        k_ahead = history_tile(k_ptr, after, history, D, BLOCK_D, BLOCK_G, BLOCK_N)
        v_ahead = history_tile(v_ptr, after, history, D, BLOCK_D, BLOCK_G, BLOCK_N)
        valid = start + n < history
        scores = tl.where(valid, tl.sum(k.to(tl.float32) * q, axis=1), _EMPTY)
        new_max = tl.maximum(row_max, scores)
        shrink = tl.exp2(row_max - new_max)
        weight = tl.where(valid, tl.exp2(scores - new_max), 0.0)
        row_sum = row_sum * shrink + weight
        row_out = row_out * shrink[:, None] + weight[:, None] * v.to(tl.float32)
        row_max = new_max
        k, v, start = k_ahead, v_ahead, after

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
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,  # SPLITS rounded up to a power of two
):
    """Add up the splits' partial results of one key head. Reads past L1: others wrote them.

    Every load is issued before any is used: one round trip to L2, whatever the group.
    """
    s, g, d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    inside = (s < used)[:, None] & (g < GROUP)[None, :]
    pair = s[:, None] * GROUP + g[None, :]
    top = tl.load(max_ptr + pair, mask=inside, other=_EMPTY, cache_modifier=".cg")
    total = tl.load(sum_ptr + pair, mask=inside, other=0.0, cache_modifier=".cg")
    out = tl.load(
        out_ptr + pair[:, :, None] * D + d[None, None, :],
        mask=inside[:, :, None] & (d < D)[None, None, :], other=0.0, cache_modifier=".cg",
    )  # fmt: skip
    weight = tl.exp2(top - tl.max(top, axis=0)[None, :])
    weight = weight / tl.sum(total * weight, axis=0)[None, :]
    attended = tl.sum(out * weight[:, :, None], axis=0)
    tl.store(
        attended_ptr + g[:, None] * D + d[None, :],
        attended,
        mask=(g < GROUP)[:, None] & (d < D)[None, :],
    )


@triton.jit
def combine_columns(
    split,  # whose columns of [GROUP * D] these are
    out_ptr,  # float32 [SPLITS, GROUP, D] of this key head
    max_ptr,  # float32 [SPLITS, GROUP]
    sum_ptr,
    used,  # splits that hold something
    attended_ptr,  # float32 [GROUP * D]
    D: tl.constexpr,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,  # SPLITS rounded up to a power of two
    BLOCK_C: tl.constexpr,  # GROUP * D / SPLITS rounded up, to a power of two
    CACHE: tl.constexpr = _NEAR,
):
    """As `combine_splits`, shared out among the programs of a key head that can wait for others."""
    COLUMNS: tl.constexpr = (GROUP * D + SPLITS - 1) // SPLITS
    s, c = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_C)
    column = split * COLUMNS + c
    present = (c < COLUMNS) & (column < GROUP * D)
    inside = (s < used)[:, None] & present[None, :]
    pair = s[:, None] * GROUP + (column // D)[None, :]
    top = tl.load(max_ptr + pair, mask=inside, other=_EMPTY, cache_modifier=CACHE)
    total = tl.load(sum_ptr + pair, mask=inside, other=0.0, cache_modifier=CACHE)
    at = s[:, None] * (GROUP * D) + column[None, :]
    out = tl.load(out_ptr + at, mask=inside, other=0.0, cache_modifier=CACHE)
    weight = tl.exp2(top - tl.max(top, axis=0)[None, :])
    attended = tl.sum(out * weight, axis=0) / tl.sum(total * weight, axis=0)
    tl.store(attended_ptr + column, attended, mask=present)
