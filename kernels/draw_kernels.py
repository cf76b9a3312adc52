"""The kernels that draw a token from the logits, and hand it on. Launched as decode_kernels are.

`control_ptr`, `settings_ptr`, `reals_ptr` and `PDL` are described in `kernels.decode_kernels`.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.dependent import let_next_start, wait_for_previous
from kernels.draw_stages import (
    embed_token,
    largest_score,
    log_probability,
    measure_block,
    pick_block,
    settle,
)
from kernels.sampling import DIGITS, next_low, publish

PASSES = tl.constexpr(32)  # of the threshold search, at most
_INT_MIN = tl.constexpr(-(2**31))


@triton.jit
def position_of_next(control_ptr):
    """int32: the position that the token being sampled goes to."""
    return (tl.load(control_ptr + 1) + 1).to(tl.int32)


@triton.jit
def target_of(settings_ptr, reals_ptr, COUNT: tl.constexpr):
    """top_k with COUNT, else top_p: float32."""
    return tl.load(settings_ptr + 4).to(tl.float32) if COUNT else tl.load(reals_ptr + 1)


@triton.jit
def narrow_kernel(
    logits_ptr, seen_ptr, settings_ptr, reals_ptr, top_ptr,
    lows_ptr, floors_ptr, above_ptr, mass_ptr, number, shift, shift_before,
    N: tl.constexpr, HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_B: tl.constexpr,
    FIRST: tl.constexpr, OPENS: tl.constexpr, COUNT: tl.constexpr, COUNT_BEFORE: tl.constexpr,
    PDL: tl.constexpr, MANY: tl.constexpr = False,
):  # fmt: skip
    """Pass `number` of the threshold search: settle the digit before, measure this one's.

    FIRST: nothing was measured before. OPENS: this pass begins a filter, whose floor is the
    threshold that the filter before it found. COUNT: top-k, else top-p. MANY: the grid's second
    dimension is the columns of a pass, each with buffers of its own, one after the other.
    """
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    if MANY:
        column = tl.program_id(1)
        logits_ptr += column * N
        seen_ptr += column * N
        top_ptr += column * HEADS
        lows_ptr += column * PASSES
        floors_ptr += column * PASSES
        above_ptr += column * 2 * BLOCKS * DIGITS
        mass_ptr += column * 2 * BLOCKS
    low = tl.full([], _INT_MIN, tl.int32)
    floor = low
    if not FIRST:
        side = (number - 1) % 2
        settled = next_low(
            above_ptr + side * BLOCKS * DIGITS, mass_ptr + side * BLOCKS,
            tl.load(lows_ptr + number - 1), shift_before,
            target_of(settings_ptr, reals_ptr, COUNT_BEFORE), BLOCKS, BLOCK_B, COUNT_BEFORE,
        )  # fmt: skip
        if OPENS:
            floor = settled
        else:
            low = settled
            floor = tl.load(floors_ptr + number - 1)
    if tl.program_id(0) == 0:
        tl.store(lows_ptr + number, low)
        tl.store(floors_ptr + number, floor)
    side = number % 2
    measure_block(
        tl.program_id(0), logits_ptr, seen_ptr, tl.load(reals_ptr + 3), tl.load(reals_ptr),
        largest_score(top_ptr, HEADS, BLOCK_H), floor, low, shift,
        above_ptr + side * BLOCKS * DIGITS, mass_ptr + side * BLOCKS, N, BLOCK, BLOCK, COUNT,
    )  # fmt: skip


@triton.jit
def pick_kernel(
    logits_ptr, seen_ptr, control_ptr, settings_ptr, reals_ptr, top_ptr,
    lows_ptr, above_ptr, mass_ptr, best_ptr, best_id_ptr, passes, shift_before,
    N: tl.constexpr, HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_B: tl.constexpr,
    SEARCHED: tl.constexpr, COUNT_BEFORE: tl.constexpr, PDL: tl.constexpr,
    MANY: tl.constexpr = False,
):  # fmt: skip
    """Each block's part of the draw among the scores that pass the filters; MANY as above."""
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    column = 0
    if MANY:
        column = tl.program_id(1)
        logits_ptr += column * N
        seen_ptr += column * N
        top_ptr += column * HEADS
        lows_ptr += column * PASSES
        above_ptr += column * 2 * BLOCKS * DIGITS
        mass_ptr += column * 2 * BLOCKS
        best_ptr += column * BLOCKS
        best_id_ptr += column * BLOCKS
    threshold = tl.full([], _INT_MIN, tl.int32)
    if SEARCHED:
        side = (passes - 1) % 2
        threshold = next_low(
            above_ptr + side * BLOCKS * DIGITS, mass_ptr + side * BLOCKS,
            tl.load(lows_ptr + passes - 1), shift_before,
            target_of(settings_ptr, reals_ptr, COUNT_BEFORE), BLOCKS, BLOCK_B, COUNT_BEFORE,
        )  # fmt: skip
    pick_block(
        tl.program_id(0), logits_ptr, seen_ptr, tl.load(reals_ptr + 3), tl.load(reals_ptr),
        largest_score(top_ptr, HEADS, BLOCK_H), threshold, tl.load(reals_ptr + 2),
        tl.load(settings_ptr + 3), position_of_next(control_ptr) + column, best_ptr, best_id_ptr,
        N, BLOCK,
    )  # fmt: skip


@triton.jit
def embed_kernel(embed_ptr, control_ptr, x_ptr, seen_ptr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """The start of a reply: what `finish_kernel` does for every token after the first."""
    embed_token(embed_ptr, tl.load(control_ptr).to(tl.int32), x_ptr, seen_ptr, K, BLOCK_K)


@triton.jit
def finish_kernel(
    logits_ptr, best_ptr, best_id_ptr, exp_max_ptr, exp_sum_ptr, control_ptr, ring_ptr,
    embed_ptr, x_ptr, seen_ptr,
    PARTS: tl.constexpr, BLOCK_P: tl.constexpr, HEADS: tl.constexpr, BLOCK_H: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, RING: tl.constexpr,
    DEVICE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: settle the draw, publish the token, and make it the next step's input."""
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    token = settle(best_ptr, best_id_ptr, PARTS, N, BLOCK_P)
    embed_token(embed_ptr, token, x_ptr, seen_ptr, K, BLOCK_K)
    logprob = log_probability(token, logits_ptr, exp_max_ptr, exp_sum_ptr, HEADS, BLOCK_H)
    position = tl.load(control_ptr + 1)
    step = tl.load(control_ptr + 2)
    tl.store(control_ptr, token.to(tl.int64))
    tl.store(control_ptr + 1, position + 1)
    tl.store(control_ptr + 2, step + 1)
    entry_ptr = ring_ptr + step % RING * 4
    publish(entry_ptr, entry_ptr + 3, token, logprob, step + 1, DEVICE)


@triton.jit
def stamp_kernel(out_ptr, DEVICE: tl.constexpr):
    """Write the device's clock, in nanoseconds, to pinned host memory."""
    if DEVICE:
        tl.store(out_ptr, cuda.globaltimer())
    else:
        tl.store(out_ptr, tl.full([], 1, tl.int64))
