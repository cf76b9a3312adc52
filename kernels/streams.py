"""A resident program's way through a matrix: rows in rounds, two tiles of weights under way.

A launched program has one tile of its matrix and ends (kernels/matvec.py); a resident one goes
through many, and what it asks for in one turn of a loop it uses in the next. For that

- weights travel in words of 32 bits (kernels/words.py);
- two turns are written out, each with a tile of its own, because a tile handed from one to the
  other is waited for as well;
- a tile spans whole rows where they are short enough: then the vector is loaded once and stays in
  registers. Longer rows are taken in steps, an even number of them.

Order of summation is fixed by the shape, so results are bit-identical from run to run.
"""

import triton
import triton.language as tl

from kernels.dependent import prefetch_to_l2
from kernels.matvec import silu_of_pairs, vector_tile
from kernels.words import packed, per_word, widened

# What becomes of a stage's sums.
PROJECT, RESIDUAL, GATED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.constexpr_function
def steps_of(columns, block):
    """Steps along a row: one, or an even number, of which the last may be beyond the row."""
    steps = -(-columns // block)
    return 1 if steps == 1 else steps + steps % 2


@triton.jit
def share(program, N: tl.constexpr, UNIT: tl.constexpr, GRID: tl.constexpr):
    """(first, stride, end) of a program's rows in rounds of UNIT: side by side.

    The memory serves many long streams faster than a window that all programs move along.
    """
    EACH: tl.constexpr = (N + UNIT * GRID - 1) // (UNIT * GRID) * UNIT
    return program * EACH, UNIT, tl.minimum(program * EACH + EACH, N)


@triton.jit
def anew(value, DEVICE: tl.constexpr):
    """`value`, int32, of which compilers know nothing.

    What comes of it is computed where it is used. Otherwise all addresses of all stages would be
    computed once, before the first token, and kept: not in registers, for there are not so many.
    """
    if DEVICE:
        value = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1
        )
    return value


@triton.jit
def tile_at(
    w_ptr, first, step, live, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """[ROWS, BLOCK_K] in words, from row `first` and column step * BLOCK_K on.

    GATED: rows `first`... of the gate's half [N, K] and of the up half in turn, so that their
    sums meet in one thread. First to leave the caches; zero beyond the matrix. Unless `live`
    nothing is loaded and nobody may use it: a branch around the load would let compilers gather
    all arithmetic before it.
    """
    EACH: tl.constexpr = per_word(w_ptr.dtype.element_ty, K)
    k = step * (BLOCK_K // EACH) + tl.arange(0, BLOCK_K // EACH)
    if ROWS == 1:
        row = first
        rows_ptr = packed(w_ptr, K) + row.to(tl.int64) * (K // EACH)
        if K % 8 == 0:  # a hint is kept only by what computes its value
            rows_ptr = tl.multiple_of(rows_ptr, 16)
        inside = (row < N) & (k < K // EACH)[None, :]
    else:
        r = tl.arange(0, ROWS)
        row = first + (r // 2 if KIND == GATED else r)
        half = r % 2 * N if KIND == GATED else 0
        rows_ptr = packed(w_ptr, K) + (row + half).to(tl.int64)[:, None] * (K // EACH)
        if K % 8 == 0:
            rows_ptr = tl.multiple_of(rows_ptr, [1, 16])
        inside = (row < N)[:, None] & (k < K // EACH)[None, :]
    pointers = rows_ptr + k[None, :]
    UNIT: tl.constexpr = ROWS // 2 if KIND == GATED else ROWS
    if N % UNIT == 0 and K % BLOCK_K == 0 and steps_of(K, BLOCK_K) * BLOCK_K == K:
        tile = tl.load(pointers, mask=live, eviction_policy="evict_first")
    else:
        tile = tl.load(pointers, mask=inside & live, other=0, eviction_policy="evict_first")
    return tile


@triton.jit
def first_step(first, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """The step that rows `first`... begin with, even: not all at one column, for one column of
    all rows lies in few of the memory's channels."""
    return first // ROWS * 2 % steps_of(K, BLOCK_K)


@triton.jit
def first_tiles(
    w_ptr, first, stride, end, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, KIND: tl.constexpr, AHEAD: tl.constexpr = 0, ON: tl.constexpr = False,
):  # fmt: skip
    """The two tiles that `stream` takes first, to be asked for before a wait.

    AHEAD rounds more are asked of L2.
    """
    column = first_step(first, K, ROWS, BLOCK_K)
    tile = tile_at(w_ptr, first, column, first < end, N, K, ROWS, BLOCK_K, KIND)
    if steps_of(K, BLOCK_K) > 1:
        upcoming = tile_at(w_ptr, first, column + 1, first < end, N, K, ROWS, BLOCK_K, KIND)
    else:
        second = first + stride
        upcoming = tile_at(w_ptr, second, 0, second < end, N, K, ROWS, BLOCK_K, KIND)
        ask_ahead(w_ptr, first + 2 * stride, stride, end, N, K, ROWS, KIND, AHEAD, ON)
    return tile, upcoming


@triton.jit
def ask_ahead(
    w_ptr, first, stride, end, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    KIND: tl.constexpr, ROUNDS: tl.constexpr, ON: tl.constexpr,
):  # fmt: skip
    """Ask L2 for the rows of ROUNDS rounds from `first` on."""
    UNIT: tl.constexpr = ROWS // 2 if KIND == GATED else ROWS
    if ON and UNIT * K % 8 == 0:
        for i in tl.static_range(ROUNDS):
            row = first + i * stride
            if row + UNIT <= end:
                row_ptr = w_ptr + row.to(tl.int64) * K
                prefetch_to_l2(row_ptr, UNIT * K, True)
                if KIND == GATED:
                    prefetch_to_l2(row_ptr + N * K, UNIT * K, True)


@triton.jit
def lane_sums(tile, x, DTYPE: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """Products of a tile and a vector, float32 [ROWS, BLOCK_K // 8]: eight neighbours added up.

    Each thread adds what it holds itself, so that the tile's registers are free before threads
    exchange anything.
    """
    products = widened(tile, DTYPE) * x[None, :]
    return tl.sum(tl.reshape(products, [ROWS, BLOCK_K // 8, 8]), axis=2)


@triton.jit
def norm_scale(x_ptr, EPS: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """1 / rms(x), which the finished sums are multiplied by (Zhang and Sennrich, 2019)."""
    squares = tl.zeros([BLOCK_K], tl.float32)
    for k_start in range(0, K, BLOCK_K):
        x = vector_tile(x_ptr, k_start, K, BLOCK_K)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, axis=0) / K + EPS)


@triton.jit
def stream(
    tile, upcoming, first, stride, end, x_ptr, gain_ptr, w_ptr, bias_ptr, out_ptr,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr = 0,
):  # fmt: skip
    """Rows `first`, `first` + `stride`, ... below `end`, each time as many as a tile has.

    PROJECT: out = W @ rms_norm(x) (+ bias); RESIDUAL: out += W @ x; GATED: out = silu(gate @ h) *
    (up @ h) with h = rms_norm(x). float32 [N]; `tile` and `upcoming` from `first_tiles`.
    """
    DTYPE: tl.constexpr = w_ptr.dtype.element_ty
    STEPS: tl.constexpr = steps_of(K, BLOCK_K)
    scale = 1.0
    if STEPS == 1:
        x = vector_tile(x_ptr, 0, K, BLOCK_K)
        if KIND != RESIDUAL:
            scale = tl.rsqrt(tl.sum(x * x, axis=0) / K + EPS)
            x *= vector_tile(gain_ptr, 0, K, BLOCK_K)
        while first < end:
            second = first + stride
            third, fourth = second + stride, second + 2 * stride
            old = old_rows(first, out_ptr, N, ROWS, KIND)
            sums = lane_sums(tile, x, DTYPE, ROWS, BLOCK_K)
            tile = tile_at(w_ptr, third, 0, third < end, N, K, ROWS, BLOCK_K, KIND)
            finish(first, sums, scale, old, bias_ptr, out_ptr, N, ROWS, KIND, BIAS)
            if second < end:
                old = old_rows(second, out_ptr, N, ROWS, KIND)
                sums = lane_sums(upcoming, x, DTYPE, ROWS, BLOCK_K)
                upcoming = tile_at(w_ptr, fourth, 0, fourth < end, N, K, ROWS, BLOCK_K, KIND)
                finish(second, sums, scale, old, bias_ptr, out_ptr, N, ROWS, KIND, BIAS)
            first = third
    else:
        if KIND != RESIDUAL:
            scale = norm_scale(x_ptr, EPS, K, BLOCK_K)
        while first < end:
            old = old_rows(first, out_ptr, N, ROWS, KIND)
            sums = tl.zeros([ROWS, BLOCK_K // 8], tl.float32)
            column = first_step(first, K, ROWS, BLOCK_K)
            for turn in range(0, STEPS, 2):
                x = scaled_vector(x_ptr, gain_ptr, column, K, BLOCK_K, KIND)
                x_after = scaled_vector(x_ptr, gain_ptr, column + 1, K, BLOCK_K, KIND)
                over = turn + 2 == STEPS  # a row's end: the next round's first two tiles
                row = tl.where(over, first + stride, first)
                column = tl.where(over, first_step(row, K, ROWS, BLOCK_K), (column + 2) % STEPS)
                sums += lane_sums(tile, x, DTYPE, ROWS, BLOCK_K)
                tile = tile_at(w_ptr, row, column, row < end, N, K, ROWS, BLOCK_K, KIND)
                sums += lane_sums(upcoming, x_after, DTYPE, ROWS, BLOCK_K)
                upcoming = tile_at(w_ptr, row, column + 1, row < end, N, K, ROWS, BLOCK_K, KIND)
            finish(first, sums, scale, old, bias_ptr, out_ptr, N, ROWS, KIND, BIAS)
            first += stride


@triton.jit
def scaled_vector(
    x_ptr, gain_ptr, step, K: tl.constexpr, BLOCK_K: tl.constexpr, KIND: tl.constexpr
):
    """x, times the norm's gain where there is a norm, zero beyond K: float32 [BLOCK_K]."""
    k = step * BLOCK_K + tl.arange(0, BLOCK_K)
    x = tl.load(x_ptr + k, mask=k < K, other=0.0)
    if KIND != RESIDUAL:
        x *= tl.load(gain_ptr + k, mask=k < K, other=0.0).to(tl.float32)
    return x


@triton.jit
def old_rows(first, out_ptr, N: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr):
    """What sums are added to: float32 [ROWS]."""
    rows = first + tl.arange(0, ROWS)
    if KIND == RESIDUAL:
        return tl.load(out_ptr + rows, mask=rows < N, other=0.0)
    else:
        return tl.zeros([ROWS], tl.float32)


@triton.jit
def finish(
    first, sums, scale, old, bias_ptr, out_ptr, N: tl.constexpr, ROWS: tl.constexpr,
    KIND: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Store a round's rows from its `lane_sums`."""
    y = tl.sum(sums, axis=1) * scale
    if KIND == GATED:
        pairs = first + tl.arange(0, ROWS // 2)
        tl.store(out_ptr + pairs, silu_of_pairs(y, ROWS), mask=pairs < N)
    else:
        rows = first + tl.arange(0, ROWS)
        if KIND == RESIDUAL:
            y += old
        if BIAS:
            y += tl.load(bias_ptr + rows, mask=rows < N, other=0.0).to(tl.float32)
        tl.store(out_ptr + rows, y, mask=rows < N)
