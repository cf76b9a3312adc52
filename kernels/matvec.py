"""Matrix-vector products of kernels launched singly: stream the weights once, sum in float32.

A program owns `ROWS` rows and walks along K in tiles of `BLOCK_K`. Products are accumulated
elementwise and reduced across threads once, at the end. The first tile is loaded by the caller,
before it waits for the kernel that produces the activations. Order of summation is
fixed by the shape, so results are bit-identical from run to run.

`CACHE` is the cache modifier for activations: "" where a kernel boundary separates writer and
reader. Resident programs go through many tiles and have kernels/streams.py.
"""

import triton
import triton.language as tl

_NEAR = tl.constexpr("")  # the default cache modifier


@triton.jit
def weight_tile(
    base_ptr,  # the first row this program owns
    rows,  # int32 [ROWS], relative to it
    rows_left,  # how many of them exist
    k_start,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RAGGED: tl.constexpr = False,
):
    """[ROWS, BLOCK_K] of weights, 16 bytes a thread, first to leave the caches.

    Zero where `rows_left` is not positive; looked at only if N is no multiple of ROWS or RAGGED.
    """
    k = k_start + tl.arange(0, BLOCK_K)
    pointers = base_ptr + rows[:, None] * K + k[None, :]
    if N % ROWS == 0 and K % BLOCK_K == 0 and not RAGGED:
        tile = tl.load(pointers, eviction_policy="evict_first")
    else:
        inside = (rows_left > 0)[:, None] & (k < K)[None, :]
        tile = tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def vector_tile(
    x_ptr, k_start, K: tl.constexpr, BLOCK_K: tl.constexpr, CACHE: tl.constexpr = _NEAR
):
    """float32 [BLOCK_K] of a vector, zero beyond K."""
    k = k_start + tl.arange(0, BLOCK_K)
    if K % BLOCK_K == 0:
        x = tl.load(x_ptr + k, cache_modifier=CACHE)
    else:
        x = tl.load(x_ptr + k, mask=k < K, other=0.0, cache_modifier=CACHE)
    return x.to(tl.float32)


@triton.jit
def matvec(
    tile,  # weight_tile(..., k_start=0)
    base_ptr,
    rows,
    rows_left,
    x_ptr,  # float32 [K]
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CACHE: tl.constexpr = _NEAR,
):
    """W @ x for this program's rows: float32 [ROWS]."""
    LAST: tl.constexpr = (K - 1) // BLOCK_K * BLOCK_K
    total = tl.zeros([ROWS, BLOCK_K], tl.float32)
    for k_start in range(0, LAST, BLOCK_K):
        ahead = weight_tile(base_ptr, rows, rows_left, k_start + BLOCK_K, N, K, ROWS, BLOCK_K)
        x = vector_tile(x_ptr, k_start, K, BLOCK_K, CACHE)
        total += tile.to(tl.float32) * x[None, :]
        tile = ahead
    x = vector_tile(x_ptr, LAST, K, BLOCK_K, CACHE)
    total += tile.to(tl.float32) * x[None, :]
    return tl.sum(total, axis=1)


@triton.jit
def normed_matvec(
    tile,  # weight_tile(..., k_start=0)
    base_ptr,
    rows,
    rows_left,
    x_ptr,  # float32 [K]
    gain_ptr,  # [K]
    EPS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CACHE: tl.constexpr = _NEAR,
    RAGGED: tl.constexpr = False,
):
    """W @ rms_norm(x) for this program's rows: float32 [ROWS].

    The norm's scale is one number for the whole vector: it is applied to the finished sums, so
    one pass over x serves both (RMSNorm: Zhang and Sennrich, 2019).
    """
    LAST: tl.constexpr = (K - 1) // BLOCK_K * BLOCK_K
    total = tl.zeros([ROWS, BLOCK_K], tl.float32)
    squares = tl.zeros([BLOCK_K], tl.float32)
    for k_start in range(0, LAST, BLOCK_K):
        ahead = weight_tile(
            base_ptr, rows, rows_left, k_start + BLOCK_K, N, K, ROWS, BLOCK_K, RAGGED
        )
        gain = vector_tile(gain_ptr, k_start, K, BLOCK_K)
        x = vector_tile(x_ptr, k_start, K, BLOCK_K, CACHE)
        squares += x * x
        total += tile.to(tl.float32) * (x * gain)[None, :]
        tile = ahead
    gain = vector_tile(gain_ptr, LAST, K, BLOCK_K)
    x = vector_tile(x_ptr, LAST, K, BLOCK_K, CACHE)
    squares += x * x
    total += tile.to(tl.float32) * (x * gain)[None, :]
    scale = tl.rsqrt(tl.sum(squares, axis=0) / K + EPS)
    return tl.sum(total, axis=1) * scale


@triton.jit
def silu_of_pairs(pairs, ROWS: tl.constexpr):
    """silu(gate) * up for interleaved (gate, up): float32 [ROWS] -> [ROWS // 2]."""
    gate, up = tl.split(tl.reshape(pairs, [ROWS // 2, 2]))
    return gate / (1.0 + tl.exp(-gate)) * up
