"""The kernels of a pass over several tokens, launched as those of kernels/decode_kernels.py are.

`control_ptr`, `settings_ptr` and `PDL` are described there. A pass feeds the token in `control`
and the drafts that follow it as columns 0, 1, ... at the positions from `control`'s on.
"""

import triton
import triton.language as tl

from kernels.attention import combine_splits, splits_used
from kernels.column_attention import attention_of_columns, history_block
from kernels.columns import normed_product, product, weights_for_columns
from kernels.dependent import let_next_start, wait_for_previous
from kernels.step_stages import pair_rows


@triton.jit
def project_kernel(
    x_ptr, gain_ptr, w_ptr, bias_ptr, out_ptr,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr, BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out = rms_norm(x) @ W' (+ bias): float32 [COLUMNS, N]. Serves QKV and the head."""
    let_next_start(PDL == 1)
    first = tl.program_id(0) * ROWS
    rows = tl.arange(0, ROWS)
    base_ptr = w_ptr + first.to(tl.int64) * K
    left = N - first - rows
    tile = weights_for_columns(base_ptr, rows, left, 0, N, K, ROWS, BLOCK_K, WARPS)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    y = normed_product(
        tile, base_ptr, rows, left, x_ptr, gain_ptr, EPS, N, K, ROWS, BLOCK_K, WARPS, COLUMNS
    )
    if BIAS:
        bias = tl.load(bias_ptr + first + rows, mask=left > 0, other=0.0)
        y += bias.to(tl.float32)[None, :]
    to = tl.arange(0, COLUMNS)[:, None] * N + (first + rows)[None, :]
    tl.store(out_ptr + to, y, mask=(left > 0)[None, :])


@triton.jit
def residual_columns_kernel(
    x_ptr, w_ptr, residual_ptr,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    WARPS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """residual += x @ W', in place: float32 [COLUMNS, N]. Serves output and down projection."""
    let_next_start(PDL == 1)
    first = tl.program_id(0) * ROWS
    rows = tl.arange(0, ROWS)
    base_ptr = w_ptr + first.to(tl.int64) * K
    left = N - first - rows
    tile = weights_for_columns(base_ptr, rows, left, 0, N, K, ROWS, BLOCK_K, WARPS)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    at = tl.arange(0, COLUMNS)[:, None] * N + (first + rows)[None, :]
    old = tl.load(residual_ptr + at, mask=(left > 0)[None, :], other=0.0)
    y = product(tile, base_ptr, rows, left, x_ptr, N, K, ROWS, BLOCK_K, WARPS, COLUMNS)
    tl.store(residual_ptr + at, old + y, mask=(left > 0)[None, :])


@triton.jit
def gate_up_columns_kernel(
    x_ptr, gain_ptr, w_ptr, out_ptr,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = silu(h @ gate') * (h @ up'), h = rms_norm(x): float32 [COLUMNS, N]; W is [2N, K]."""
    let_next_start(PDL == 1)
    first = tl.program_id(0) * (ROWS // 2)
    rows = pair_rows(N, ROWS)
    base_ptr = w_ptr + first.to(tl.int64) * K
    left = N - first - tl.arange(0, ROWS) // 2
    # Pairs end evenly where N is a multiple of half the rows.
    tile = weights_for_columns(base_ptr, rows, left, 0, 2 * N, K, ROWS, BLOCK_K, WARPS)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    pairs = normed_product(
        tile, base_ptr, rows, left, x_ptr, gain_ptr, EPS, 2 * N, K, ROWS, BLOCK_K, WARPS, COLUMNS
    )
    gate, up = tl.split(tl.reshape(pairs, [COLUMNS, ROWS // 2, 2]))
    out = first + tl.arange(0, ROWS // 2)
    to = tl.arange(0, COLUMNS)[:, None] * N + out[None, :]
    tl.store(out_ptr + to, gate / (1.0 + tl.exp(-gate)) * up, mask=(out < N)[None, :])


@triton.jit
def attention_columns_kernel(
    qkv_ptr, q_gain_ptr, k_gain_ptr, cos_ptr, sin_ptr, control_ptr, settings_ptr,
    out_ptr, max_ptr, sum_ptr, layer,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, COLUMNS: tl.constexpr,
    LIMIT: tl.constexpr, EPS: tl.constexpr, QK_NORM: tl.constexpr, SCALE: tl.constexpr,
    DTYPE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program for each key head and split; appends the pass's keys and values."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    let_next_start(PDL == 1)
    kv_head, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    positions = tl.load(settings_ptr + 2).to(tl.int32)
    cache_offset = (layer * KV_HEADS + kv_head).to(tl.int64) * positions * D
    k_ptr = tl.multiple_of(tl.load(settings_ptr), 16).to(tl.pointer_type(DTYPE)) + cache_offset
    v_ptr = tl.multiple_of(tl.load(settings_ptr + 1), 16).to(tl.pointer_type(DTYPE)) + cache_offset
    # The kernels before this one in the pass write neither the position nor the history.
    first = tl.load(control_ptr + 1).to(tl.int32)
    history = tl.minimum(first, positions)
    k = history_block(k_ptr, split * BLOCK_N, history, D, BLOCK_D, BLOCK_N)
    v = history_block(v_ptr, split * BLOCK_N, history, D, BLOCK_D, BLOCK_N)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    if split < splits_used(history, SPLITS, BLOCK_N):
        head = kv_head * COLUMNS * SPLITS * GROUP
        attention_of_columns(
            k, v, qkv_ptr, q_gain_ptr, k_gain_ptr, cos_ptr, sin_ptr, k_ptr, v_ptr,
            first, history, positions, kv_head, split,
            out_ptr + head * D, max_ptr + head, sum_ptr + head,
            HEADS, KV_HEADS, D, BLOCK_D, GROUP, BLOCK_G, BLOCK_N, SPLITS, COLUMNS, LIMIT,
            EPS, QK_NORM, SCALE,
        )  # fmt: skip


@triton.jit
def combine_columns_kernel(
    out_ptr, max_ptr, sum_ptr, control_ptr, settings_ptr, attended_ptr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr,
    COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """attended = float32 [COLUMNS, HEADS, D], one program for each key head and column.

    A kernel of its own: the last program to arrive would add up all columns alone.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    let_next_start(PDL == 1)
    positions = tl.load(settings_ptr + 2).to(tl.int32)
    history = tl.minimum(tl.load(control_ptr + 1).to(tl.int32), positions)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    kv_head, column = tl.program_id(0) // COLUMNS, tl.program_id(0) % COLUMNS
    first = tl.program_id(0) * SPLITS * GROUP
    combine_splits(
        out_ptr + first * D, max_ptr + first, sum_ptr + first,
        splits_used(history, SPLITS, BLOCK_N),
        attended_ptr + (column * HEADS + kv_head * GROUP) * D, D, BLOCK_D, GROUP, BLOCK_G, BLOCK_S,
    )  # fmt: skip
