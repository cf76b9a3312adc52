"""Attention and the filters' threshold on a resident grid, whose programs can wait for another.

A program has a part of attention, or all of some key heads, and blocks of the vocabulary. What it
reads first it is given, for it has been asked for before the barrier that the stage begins behind.
"""

import triton
import triton.language as tl

from kernels.attention import combine_columns, splits_used
from kernels.draw_stages import measure_block
from kernels.grid_barrier import grid_barrier, head_barrier
from kernels.resident_attention import attention_part, position_tile
from kernels.sampling import DIGITS, next_low

_INT_MIN = tl.constexpr(-(2**31))


@triton.jit
def history_tiles(
    keys_ptr, values_ptr, part, history, positions, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The first tile of keys and of values that part `part` of a layer's attention reads.

    Earlier steps wrote them, so that they can be asked for before this step's queries are there.
    """
    k_ptr = keys_ptr + (part // SPLITS) * positions * D
    v_ptr = values_ptr + (part // SPLITS) * positions * D
    start = part % SPLITS * BLOCK_N
    k = position_tile(k_ptr, start, history, D, BLOCK_D, BLOCK_N)
    v = position_tile(v_ptr, start, history, D, BLOCK_D, BLOCK_N)
    return k, v


@triton.jit
def attention_stage(
    k, v, program, keys_ptr, values_ptr, history, positions,
    qkv_ptr, q_gain_ptr, k_gain_ptr, cos_ptr, sin_ptr,
    part_out_ptr, part_max_ptr, part_sum_ptr, attended_ptr,
    sync_ptr, rounds, timeout_ns, fault_ptr, place,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr, EPS: tl.constexpr, QK_NORM: tl.constexpr, SCALE: tl.constexpr,
    GRID: tl.constexpr, DEVICE: tl.constexpr,
):  # fmt: skip
    """RoPE + KV append, attention and combine: a program has one part, or all of some key heads.

    The programs of a key head wait for one another and then each combine some columns.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    used = splits_used(history, SPLITS, BLOCK_N)
    part = program
    while part < KV_HEADS * SPLITS:
        kv_head = part // SPLITS
        if part % SPLITS < used:
            attention_part(
                k, v, qkv_ptr, q_gain_ptr, k_gain_ptr, cos_ptr, sin_ptr,
                keys_ptr + kv_head * positions * D, values_ptr + kv_head * positions * D,
                history, kv_head, part % SPLITS, part_out_ptr + part * GROUP * D,
                part_max_ptr + part * GROUP, part_sum_ptr + part * GROUP, HEADS, KV_HEADS, D,
                BLOCK_D, GROUP, BLOCK_G, BLOCK_N, SPLITS, EPS, QK_NORM, SCALE, DEVICE,
            )  # fmt: skip
        head_barrier(sync_ptr, kv_head, rounds, timeout_ns, fault_ptr, place, SPLITS, DEVICE)
        first = kv_head * SPLITS * GROUP
        combine_columns(
            part % SPLITS, part_out_ptr + first * D, part_max_ptr + first, part_sum_ptr + first,
            used, attended_ptr + kv_head * GROUP * D, D, GROUP, SPLITS, BLOCK_S, BLOCK_C,
        )  # fmt: skip
        part += GRID
        if part < KV_HEADS * SPLITS:
            k, v = history_tiles(
                keys_ptr, values_ptr, part, history, positions, D, BLOCK_D, BLOCK_N, SPLITS,
            )  # fmt: skip


@triton.jit
def threshold_stage(
    program, floor, target, rounds, sync_ptr, fault_ptr, timeout_ns, place,
    logits_ptr, seen_ptr, penalty, temperature, top, above_ptr, mass_ptr,
    N: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK_B: tl.constexpr, COUNT: tl.constexpr, GRID: tl.constexpr, DEVICE: tl.constexpr,
):  # fmt: skip
    """(threshold of top-k with COUNT, else of top-p; rounds): four bits between two barriers."""
    low = tl.full([], _INT_MIN, tl.int32)
    for digit in range(8):
        shift, side = 28 - 4 * digit, digit % 2
        sums_ptr, total_ptr = above_ptr + side * BLOCKS * DIGITS, mass_ptr + side * BLOCKS
        block = program
        while block < BLOCKS:
            measure_block(
                block, logits_ptr, seen_ptr, penalty, temperature, top, floor, low, shift,
                sums_ptr, total_ptr, N, BLOCK, CHUNK, COUNT,
            )  # fmt: skip
            block += GRID
        rounds += 1
        grid_barrier(sync_ptr, rounds, timeout_ns, fault_ptr, place, GRID, DEVICE)
        low = next_low(sums_ptr, total_ptr, low, shift, target, BLOCKS, BLOCK_B, COUNT)
    return low, rounds
