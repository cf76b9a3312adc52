"""Matrix products of a few tokens at once: the weights are streamed as for one, and read once.

A *column* is one token of the pass; activations lie as float32 [COLUMNS, K]. Where `kernels.matvec`
multiplies elementwise, this takes tensor cores, in which eight columns cost what two do. Weights
stay in bfloat16 and an activation is the sum of two bfloat16 halves, high and low, in rows of
their own: 16 bits of significand, so that a column comes out as alone but for the last bits, and
eight columns fill the 16 rows of one instruction. Other dtypes are multiplied in float32.

Each of a program's WARPS warps takes a stretch of every tile along K; their sums meet once, at the
end, in a fixed order. As in `kernels.matvec` the first tile is loaded before the wait, and each
further one while the tile before it is used.
"""

import triton
import triton.language as tl

# The interpreter multiplies the bits of bfloat16: it is given the same values in float32.
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def dot(x, y, total):
    """total + x @ y, float32: exact products of x and y, float32 without loss of bits."""
    if _INTERPRETED:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, total, input_precision="ieee")


@triton.jit
def tile_columns(k_start, WARPS: tl.constexpr, BLOCK_K: tl.constexpr):
    """int32 [WARPS, 1, BLOCK_K // WARPS]: where along K each warp's stretch lies."""
    warp, k = tl.arange(0, WARPS), tl.arange(0, BLOCK_K // WARPS)
    return k_start + warp[:, None, None] * (BLOCK_K // WARPS) + k[None, None, :]


@triton.jit
def weights_for_columns(
    base_ptr,  # the first row this program owns
    rows,  # int32 [ROWS], relative to it
    rows_left,  # how many of them exist
    k_start,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """[WARPS, ROWS, BLOCK_K // WARPS] of weights, first to leave the caches; zero outside."""
    k = tile_columns(k_start, WARPS, BLOCK_K)
    pointers = base_ptr + rows[None, :, None] * K + k
    if N % ROWS == 0 and K % BLOCK_K == 0:
        tile = tl.load(pointers, eviction_policy="evict_first")
    else:
        inside = (rows_left > 0)[None, :, None] & (k < K)
        tile = tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def activations(
    x_ptr, k_start, K: tl.constexpr, BLOCK_K: tl.constexpr, WARPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """float32 [WARPS, COLUMNS, BLOCK_K // WARPS], zero beyond K."""
    k = tile_columns(k_start, WARPS, BLOCK_K)
    pointers = x_ptr + tl.arange(0, COLUMNS)[None, :, None] * K + k
    return tl.load(pointers) if K % BLOCK_K == 0 else tl.load(pointers, mask=k < K, other=0.0)


@triton.jit
def gains(gain_ptr, k_start, K: tl.constexpr, BLOCK_K: tl.constexpr, WARPS: tl.constexpr):
    """float32 [WARPS, 1, BLOCK_K // WARPS], zero beyond K."""
    k = tile_columns(k_start, WARPS, BLOCK_K)
    return tl.load(gain_ptr + k, mask=k < K, other=0.0).to(tl.float32)


@triton.jit
def add_product(
    total,  # float32 [WARPS, 2 * COLUMNS, ROWS]
    tile,  # [WARPS, ROWS, BLOCK_K // WARPS]
    x,  # float32 [WARPS, COLUMNS, BLOCK_K // WARPS]
    WARPS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """total + x @ tile', each column's high and low halves in rows 2 c and 2 c + 1."""
    # float16 holds no large activation, so what is not bfloat16 is multiplied in float32.
    DOT: tl.constexpr = tl.bfloat16 if tile.dtype == tl.bfloat16 else tl.float32
    high = x.to(DOT)
    low = (x - high.to(tl.float32)).to(DOT)
    halves = tl.permute(tl.join(high, low), (0, 1, 3, 2))
    halves = tl.reshape(halves, [WARPS, 2 * COLUMNS, BLOCK_K // WARPS])
    return dot(halves, tl.permute(tile.to(DOT), (0, 2, 1)), total)


@triton.jit
def sum_of_halves(total, WARPS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """float32 [COLUMNS, ROWS] from [WARPS, 2 * COLUMNS, ROWS]."""
    return tl.sum(tl.sum(tl.reshape(total, [WARPS, COLUMNS, 2, ROWS]), axis=2), axis=0)


@triton.jit
def product(
    tile,  # weights_for_columns(..., k_start=0)
    base_ptr, rows, rows_left,
    x_ptr,  # float32 [COLUMNS, K]
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    WARPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """x @ W' for this program's rows of W: float32 [COLUMNS, ROWS]."""
    LAST: tl.constexpr = (K - 1) // BLOCK_K * BLOCK_K
    total = tl.zeros([WARPS, 2 * COLUMNS, ROWS], tl.float32)
    for k_start in range(0, LAST, BLOCK_K):
        ahead = weights_for_columns(
            base_ptr, rows, rows_left, k_start + BLOCK_K, N, K, ROWS, BLOCK_K, WARPS
        )
        x = activations(x_ptr, k_start, K, BLOCK_K, WARPS, COLUMNS)
        total = add_product(total, tile, x, WARPS, COLUMNS, BLOCK_K)
        tile = ahead
    x = activations(x_ptr, LAST, K, BLOCK_K, WARPS, COLUMNS)
    total = add_product(total, tile, x, WARPS, COLUMNS, BLOCK_K)
    return sum_of_halves(total, WARPS, COLUMNS, ROWS)


@triton.jit
def normed_product(
    tile,  # weights_for_columns(..., k_start=0)
    base_ptr, rows, rows_left,
    x_ptr,  # float32 [COLUMNS, K]
    gain_ptr,  # [K]
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """rms_norm(x) @ W' for this program's rows of W: float32 [COLUMNS, ROWS].

    Each column's scale is applied to its finished sums, as in `kernels.matvec.normed_matvec`.
    """
    LAST: tl.constexpr = (K - 1) // BLOCK_K * BLOCK_K
    total = tl.zeros([WARPS, 2 * COLUMNS, ROWS], tl.float32)
    squares = tl.zeros([WARPS, COLUMNS], tl.float32)
    for k_start in range(0, LAST, BLOCK_K):
        ahead = weights_for_columns(
            base_ptr, rows, rows_left, k_start + BLOCK_K, N, K, ROWS, BLOCK_K, WARPS
        )
        x = activations(x_ptr, k_start, K, BLOCK_K, WARPS, COLUMNS)
        squares += tl.sum(x * x, axis=2)
        x *= gains(gain_ptr, k_start, K, BLOCK_K, WARPS)
        total = add_product(total, tile, x, WARPS, COLUMNS, BLOCK_K)
        tile = ahead
    x = activations(x_ptr, LAST, K, BLOCK_K, WARPS, COLUMNS)
    squares += tl.sum(x * x, axis=2)
    x *= gains(gain_ptr, LAST, K, BLOCK_K, WARPS)
    total = add_product(total, tile, x, WARPS, COLUMNS, BLOCK_K)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / K + EPS)
    return sum_of_halves(total, WARPS, COLUMNS, ROWS) * scale[:, None]
