"""What one program of a kernel launched singly does in each stage of a decode step.

Such a kernel (kernels/decode_kernels.py) waits for the kernel before and then calls one of these,
with what it could load before it waited. The programs of the persistent kernel, which go through
many tiles each, have kernels/streams.py and kernels/resident_attention.py instead, and share the
draw. Activations are float32, `first` is the first row that the program owns. `CACHE` is described
in `kernels.matvec`.
"""

import triton
import triton.language as tl

from kernels.attention import attention_partial
from kernels.matvec import matvec, normed_matvec, silu_of_pairs, weight_tile
from kernels.sampling import best_of, scores_of

_NEAR = tl.constexpr("")  # the default cache modifier
_NONE = tl.constexpr(-3.0e38)


@triton.jit
def rows_tile(
    w_ptr, first, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr
):
    """The first tile of rows `first`..., to be loaded before a wait."""
    rows = tl.arange(0, ROWS)
    base_ptr = w_ptr + first.to(tl.int64) * K
    return weight_tile(base_ptr, rows, N - first - rows, 0, N, K, ROWS, BLOCK_K)


@triton.jit
def pair_rows(N: tl.constexpr, ROWS: tl.constexpr):
    """int32 [ROWS]: gate and up rows in turn, so that their sums meet in one thread."""
    r = tl.arange(0, ROWS)
    return (r % 2) * N + r // 2


@triton.jit
def pairs_tile(
    w_ptr, first, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr
):
    """As `rows_tile`, of the pairs that `gate_up_rows` takes."""
    base_ptr = w_ptr + first.to(tl.int64) * K
    rows_left = N - first - tl.arange(0, ROWS) // 2
    return weight_tile(base_ptr, pair_rows(N, ROWS), rows_left, 0, N, K, ROWS, BLOCK_K)


@triton.jit
def qkv_rows(
    tile, first, x_ptr, gain_ptr, w_ptr, bias_ptr, out_ptr,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BIAS: tl.constexpr, CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """out = W @ rms_norm(x) (+ bias) for ROWS rows: float32 [N]."""
    rows = tl.arange(0, ROWS)
    base_ptr = w_ptr + first.to(tl.int64) * K
    y = normed_matvec(
        tile, base_ptr, rows, N - first - rows, x_ptr, gain_ptr, EPS, N, K, ROWS, BLOCK_K, CACHE,
    )  # fmt: skip
    if BIAS:
        y += tl.load(bias_ptr + first + rows, mask=first + rows < N, other=0.0).to(tl.float32)
    tl.store(out_ptr + first + rows, y, mask=first + rows < N)


@triton.jit
def attention_split(
    k, v, part, qkv_ptr, q_gain_ptr, k_gain_ptr, cos_ptr, sin_ptr, k_ptr, v_ptr,
    history, used, out_ptr, max_ptr, sum_ptr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    EPS: tl.constexpr, QK_NORM: tl.constexpr, SCALE: tl.constexpr, CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """Part `part` = kv_head * SPLITS + split of one layer's attention; nothing beyond `used`.

    `cos_ptr`, `sin_ptr` of this position; `k_ptr`, `v_ptr` of this layer and key head.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head, split = part // SPLITS, part % SPLITS
    if split < used:
        attention_partial(
            k, v, qkv_ptr, q_gain_ptr, k_gain_ptr, cos_ptr, sin_ptr,
            k_ptr, v_ptr, history, kv_head, split,
            out_ptr + part * GROUP * D, max_ptr + part * GROUP, sum_ptr + part * GROUP,
            HEADS, KV_HEADS, D, BLOCK_D, GROUP, BLOCK_G, BLOCK_N, SPLITS, EPS, QK_NORM, SCALE,
            CACHE,
        )  # fmt: skip


@triton.jit
def residual_rows(
    tile, first, x_ptr, w_ptr, residual_ptr,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """residual += W @ x for ROWS rows, in place. Serves the output and the down projection."""
    rows = tl.arange(0, ROWS)
    base_ptr = w_ptr + first.to(tl.int64) * K
    inside = first + rows < N
    old = tl.load(residual_ptr + first + rows, mask=inside, other=0.0, cache_modifier=CACHE)
    y = matvec(tile, base_ptr, rows, N - first - rows, x_ptr, N, K, ROWS, BLOCK_K, CACHE)
    tl.store(residual_ptr + first + rows, old + y, mask=inside)


@triton.jit
def gate_up_rows(
    tile, first, x_ptr, gain_ptr, w_ptr, out_ptr,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """out = silu(gate @ h) * (up @ h), h = rms_norm(x), for ROWS // 2 pairs: float32 [N].

    W is [2N, K], gate first.
    """
    base_ptr = w_ptr + first.to(tl.int64) * K
    rows_left = N - first - tl.arange(0, ROWS) // 2
    pairs = normed_matvec(
        tile, base_ptr, pair_rows(N, ROWS), rows_left, x_ptr, gain_ptr, EPS, N, K, ROWS, BLOCK_K,
        CACHE,
    )  # fmt: skip
    out = first + tl.arange(0, ROWS // 2)
    tl.store(out_ptr + out, silu_of_pairs(pairs, ROWS), mask=out < N)


@triton.jit
def head_tile(
    w_ptr, program, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    SEGMENT: tl.constexpr,
):  # fmt: skip
    """The first tile of the segment of `head_segment`."""
    begin = program * SEGMENT
    rows = tl.arange(0, ROWS)
    rows_left = tl.minimum(begin + SEGMENT, N) - begin - rows
    base_ptr = w_ptr + begin.to(tl.int64) * K
    return weight_tile(base_ptr, rows, rows_left, 0, N, K, ROWS, BLOCK_K, True)


@triton.jit
def head_segment(
    tile, program, x_ptr, gain_ptr, w_ptr, logits_ptr, seen_ptr,
    best_ptr, best_id_ptr, top_ptr, exp_max_ptr, exp_sum_ptr,
    seed, position, temperature, penalty,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, SEGMENT: tl.constexpr, BLOCK_S: tl.constexpr,
    CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """logits = W @ rms_norm(x), and this program's part of the draw and of the softmax.

    A program owns SEGMENT rows (a multiple of ROWS) and, having computed them all, goes over its
    logits once more with one row a thread. A program past the end contributes nothing.
    """
    rows = tl.arange(0, ROWS)
    begin = program * SEGMENT
    end = tl.minimum(begin + SEGMENT, N)
    base_ptr = w_ptr + begin.to(tl.int64) * K
    for i in range(SEGMENT // ROWS):
        first = begin + i * ROWS
        y = normed_matvec(
            tile, base_ptr, rows, end - first - rows, x_ptr, gain_ptr, EPS, N, K, ROWS, BLOCK_K,
            CACHE, RAGGED=True,
        )  # fmt: skip
        base_ptr += ROWS * K
        tile = weight_tile(base_ptr, rows, end - first - ROWS - rows, 0, N, K, ROWS, BLOCK_K, True)
        tl.store(logits_ptr + first + rows, y, mask=first + rows < end)
    segment_draw(
        program, begin, end, logits_ptr, seen_ptr, best_ptr, best_id_ptr, top_ptr, exp_max_ptr,
        exp_sum_ptr, seed, position, temperature, penalty, BLOCK_S, CACHE,
    )  # fmt: skip


@triton.jit
def segment_draw(
    program, begin, end, logits_ptr, seen_ptr, best_ptr, best_id_ptr, top_ptr, exp_max_ptr,
    exp_sum_ptr, seed, position, temperature, penalty,
    BLOCK_S: tl.constexpr, CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """A program's part of the draw and of the softmax, from logits `begin` to `end`, its own."""
    tl.debug_barrier()
    ids = begin + tl.arange(0, BLOCK_S)
    present = ids < end
    logits = tl.load(logits_ptr + ids, mask=present, other=_NONE, cache_modifier=CACHE)
    seen = tl.load(seen_ptr + ids, mask=present, other=0, cache_modifier=CACHE)
    scores = tl.where(present, scores_of(logits, seen, penalty, temperature), _NONE)
    value, winner = best_of(scores, ids, present, seed, position, temperature)
    exp_max = tl.max(logits, axis=0)
    tl.store(best_ptr + program, value)
    tl.store(best_id_ptr + program, winner)
    tl.store(top_ptr + program, tl.max(scores, axis=0))
    tl.store(exp_max_ptr + program, exp_max)
    exp_sum = tl.sum(tl.where(present, tl.exp(logits - exp_max), 0.0), axis=0)
    tl.store(exp_sum_ptr + program, exp_sum)
