"""The kernels of one decode step, launched singly: a grid around each stage of step_stages.

Every program waits for the kernel before (`wait_for_previous`), having first asked for weights
and, as a graph holds one step, for what earlier steps left. `PDL`: 0 without dependent launch,
1 if the next kernel may start at once, 2 if it may when the one before has ended: that leaves the
SMs to this kernel.
Activations are float32; `control_ptr` is what changes from token to token (int64: the token to be
fed, its position, steps done), `settings_ptr` and `reals_ptr` what a reply holds constant:

settings (int64)  0 address of keys, 1 of values, 2 positions in the cache, 3 seed, 4 top_k
reals (float32)   0 temperature, 1 top_p, 2 log(min_p), 3 repetition penalty
"""

import triton
import triton.language as tl

from kernels.attention import combine_splits, history_tile, splits_used
from kernels.dependent import let_next_start, prefetch_to_l2, wait_for_previous
from kernels.draw_kernels import position_of_next
from kernels.step_stages import (
    attention_split,
    gate_up_rows,
    head_segment,
    head_tile,
    pairs_tile,
    qkv_rows,
    residual_rows,
    rows_tile,
)


@triton.jit
def qkv_kernel(
    x_ptr, gain_ptr, w_ptr, bias_ptr, out_ptr,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = W @ rms_norm(x) (+ bias): float32 [N]."""
    let_next_start(PDL == 1)
    first = tl.program_id(0) * ROWS
    tile = rows_tile(w_ptr, first, N, K, ROWS, BLOCK_K)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    qkv_rows(tile, first, x_ptr, gain_ptr, w_ptr, bias_ptr, out_ptr, EPS, N, K, ROWS, BLOCK_K, BIAS)


@triton.jit
def attention_kernel(
    qkv_ptr, q_gain_ptr, k_gain_ptr, cos_ptr, sin_ptr, control_ptr, settings_ptr,
    out_ptr, max_ptr, sum_ptr, arrived_ptr, attended_ptr, ahead_ptr, layer,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr,
    EPS: tl.constexpr, QK_NORM: tl.constexpr, SCALE: tl.constexpr, DTYPE: tl.constexpr,
    AHEAD: tl.constexpr, AHEAD_HALF: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """attended = softmax(q k') v of one layer, float32 [HEADS, D]; appends the new key and value.

    One program for each key head and split; the last to arrive for a key head combines.
    Attention leaves memory nearly idle, so each program asks for AHEAD weights of either half of
    gate/up, whose turn comes after the output projection's.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    let_next_start(PDL == 1)
    prefetch_to_l2(ahead_ptr + tl.program_id(0) * AHEAD, AHEAD, PDL and AHEAD > 0)
    prefetch_to_l2(ahead_ptr + AHEAD_HALF + tl.program_id(0) * AHEAD, AHEAD, PDL and AHEAD > 0)
    kv_head, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    positions = tl.load(settings_ptr + 2)
    cache_offset = (layer * KV_HEADS + kv_head).to(tl.int64) * positions * D
    k_ptr = tl.multiple_of(tl.load(settings_ptr), 16).to(tl.pointer_type(DTYPE)) + cache_offset
    v_ptr = tl.multiple_of(tl.load(settings_ptr + 1), 16).to(tl.pointer_type(DTYPE)) + cache_offset
    # The position and the history are results of earlier steps, complete when this step began.
    # Clamped, so that a step launched past the end of the cache spoils its last position only.
    history = tl.minimum(tl.load(control_ptr + 1), positions - 1).to(tl.int32)
    used = splits_used(history, SPLITS, BLOCK_N)
    k = history_tile(k_ptr, split * BLOCK_N, history, D, BLOCK_D, BLOCK_G, BLOCK_N)
    v = history_tile(v_ptr, split * BLOCK_N, history, D, BLOCK_D, BLOCK_G, BLOCK_N)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    attention_split(
        k, v, tl.program_id(0), qkv_ptr, q_gain_ptr, k_gain_ptr,
        cos_ptr + history * (D // 2), sin_ptr + history * (D // 2), k_ptr, v_ptr, history, used,
        out_ptr, max_ptr, sum_ptr,
        HEADS, KV_HEADS, D, BLOCK_D, BLOCK_G, BLOCK_N, SPLITS, EPS, QK_NORM, SCALE,
    )  # fmt: skip
    if split < used:
        tl.debug_barrier()  # one thread's release below stands for all threads' stores
        arrived = tl.atomic_add(arrived_ptr + kv_head, 1, sem="acq_rel", scope="gpu")
        if arrived == used - 1:
            first = kv_head * SPLITS
            combine_splits(
                out_ptr + first * GROUP * D, max_ptr + first * GROUP, sum_ptr + first * GROUP,
                used, attended_ptr + kv_head * GROUP * D, D, BLOCK_D, GROUP, BLOCK_G, BLOCK_S,
            )  # fmt: skip
            tl.store(arrived_ptr + kv_head, 0)


@triton.jit
def residual_kernel(
    x_ptr, w_ptr, residual_ptr,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """residual += W @ x, in place: float32 [N]. Serves the output and the down projection."""
    let_next_start(PDL == 1)
    first = tl.program_id(0) * ROWS
    tile = rows_tile(w_ptr, first, N, K, ROWS, BLOCK_K)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    residual_rows(tile, first, x_ptr, w_ptr, residual_ptr, N, K, ROWS, BLOCK_K)


@triton.jit
def gate_up_kernel(
    x_ptr, gain_ptr, w_ptr, out_ptr,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = silu(gate @ h) * (up @ h), h = rms_norm(x): float32 [N]; W is [2N, K], gate first."""
    let_next_start(PDL == 1)
    first = tl.program_id(0) * (ROWS // 2)
    tile = pairs_tile(w_ptr, first, N, K, ROWS, BLOCK_K)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    gate_up_rows(tile, first, x_ptr, gain_ptr, w_ptr, out_ptr, EPS, N, K, ROWS, BLOCK_K)


@triton.jit
def head_kernel(
    x_ptr, gain_ptr, w_ptr, logits_ptr, seen_ptr, control_ptr, settings_ptr, reals_ptr,
    best_ptr, best_id_ptr, top_ptr, exp_max_ptr, exp_sum_ptr,
    EPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, SEGMENT: tl.constexpr, BLOCK_S: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """logits = W @ rms_norm(x), and each program's part of the draw and of the softmax."""
    let_next_start(PDL == 1)
    program = tl.program_id(0)
    tile = head_tile(w_ptr, program, N, K, ROWS, BLOCK_K, SEGMENT)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    head_segment(
        tile, program, x_ptr, gain_ptr, w_ptr, logits_ptr, seen_ptr,
        best_ptr, best_id_ptr, top_ptr, exp_max_ptr, exp_sum_ptr,
        tl.load(settings_ptr + 3), position_of_next(control_ptr),
        tl.load(reals_ptr), tl.load(reals_ptr + 3),
        EPS, N, K, ROWS, BLOCK_K, SEGMENT, BLOCK_S,
    )  # fmt: skip
