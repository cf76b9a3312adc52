"""The kernels that draw a token from the logits, and hand it on. Launched as decode_kernels are.

`control_ptr`, `settings_ptr`, `reals_ptr` and `PDL` are described in `kernels.decode_kernels`.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.dependent import let_next_start, wait_for_previous
from kernels.sampling import (
    DIGITS,
    best_of,
    mass_above,
    next_low,
    ordered,
    publish,
    scores_of,
)

_INT_MIN = tl.constexpr(-(2**31))
_NONE = tl.constexpr(-3.0e38)


@triton.jit
def position_of_next(control_ptr):
    """int32: the position that the token being sampled goes to."""
    return (tl.load(control_ptr + 1) + 1).to(tl.int32)


@triton.jit
def block_of_scores(
    logits_ptr, seen_ptr, reals_ptr, top_ptr,
    N: tl.constexpr, HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(ids, which exist, scores) of this program's block, and the largest score of all."""
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    present = ids < N
    logits = tl.load(logits_ptr + ids, mask=present, other=_NONE)
    seen = tl.load(seen_ptr + ids, mask=present, other=0)
    scores = scores_of(logits, seen, tl.load(reals_ptr + 3), tl.load(reals_ptr))
    h = tl.arange(0, BLOCK_H)
    top = tl.max(tl.load(top_ptr + h, mask=h < HEADS, other=_NONE), axis=0)
    return ids, present, scores, top


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
    PDL: tl.constexpr,
):  # fmt: skip
    """Pass `number` of the threshold search: settle the digit before, measure this one's.

    FIRST: nothing was measured before. OPENS: this pass begins a filter, whose floor is the
    threshold that the filter before it found. COUNT: top-k, else top-p.
    """
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
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
    _, present, scores, top = block_of_scores(
        logits_ptr, seen_ptr, reals_ptr, top_ptr, N, HEADS, BLOCK_H, BLOCK
    )
    above, mass = mass_above(scores, present, floor, top, low, shift, COUNT)
    block = (number % 2) * BLOCKS + tl.program_id(0)
    tl.store(above_ptr + block * DIGITS + tl.arange(0, DIGITS), above)
    tl.store(mass_ptr + block, mass)


@triton.jit
def pick_kernel(
    logits_ptr, seen_ptr, control_ptr, settings_ptr, reals_ptr, top_ptr,
    lows_ptr, above_ptr, mass_ptr, best_ptr, best_id_ptr, passes, shift_before,
    N: tl.constexpr, HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK_B: tl.constexpr,
    SEARCHED: tl.constexpr, COUNT_BEFORE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each block's part of the draw among the scores that pass the filters."""
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    ids, kept, scores, top = block_of_scores(
        logits_ptr, seen_ptr, reals_ptr, top_ptr, N, HEADS, BLOCK_H, BLOCK
    )
    kept &= scores >= top + tl.load(reals_ptr + 2)
    if SEARCHED:
        side = (passes - 1) % 2
        threshold = next_low(
            above_ptr + side * BLOCKS * DIGITS, mass_ptr + side * BLOCKS,
            tl.load(lows_ptr + passes - 1), shift_before,
            target_of(settings_ptr, reals_ptr, COUNT_BEFORE), BLOCKS, BLOCK_B, COUNT_BEFORE,
        )  # fmt: skip
        kept &= ordered(scores) >= threshold
    value, winner = best_of(
        scores, ids, kept, tl.load(settings_ptr + 3), position_of_next(control_ptr),
        tl.load(reals_ptr),
    )  # fmt: skip
    tl.store(best_ptr + tl.program_id(0), value)
    tl.store(best_id_ptr + tl.program_id(0), winner)


@triton.jit
def embed_token(embed_ptr, token, x_ptr, seen_ptr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """x = the token's embedding, float32 [K]; the token counts as seen from now on."""
    tl.store(seen_ptr + token, 1)
    k = tl.arange(0, BLOCK_K)
    row = tl.load(embed_ptr + token.to(tl.int64) * K + k, mask=k < K, other=0.0)
    tl.store(x_ptr + k, row.to(tl.float32), mask=k < K)


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
    p, h = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_H)
    value = tl.load(best_ptr + p, mask=p < PARTS, other=_NONE)
    ids = tl.load(best_id_ptr + p, mask=p < PARTS, other=2**31 - 1)
    token = tl.min(tl.where(value == tl.max(value, axis=0), ids, 2**31 - 1), axis=0)
    token = tl.minimum(token, N - 1)  # there is no winner among NaN
    embed_token(embed_ptr, token, x_ptr, seen_ptr, K, BLOCK_K)
    exp_max = tl.load(exp_max_ptr + h, mask=h < HEADS, other=_NONE)
    exp_sum = tl.load(exp_sum_ptr + h, mask=h < HEADS, other=0.0)
    top = tl.max(exp_max, axis=0)
    log_total = top + tl.log(tl.sum(exp_sum * tl.exp(exp_max - top), axis=0))
    logprob = tl.load(logits_ptr + token) - log_total
    position = tl.load(control_ptr + 1)
    step = tl.load(control_ptr + 2)
    tl.store(control_ptr, token.to(tl.int64))
    tl.store(control_ptr + 1, position + 1)
    tl.store(control_ptr + 2, step + 1)
    publish(ring_ptr, step % RING, token, logprob, step + 1, DEVICE)


@triton.jit
def stamp_kernel(out_ptr, DEVICE: tl.constexpr):
    """Write the device's clock, in nanoseconds, to pinned host memory."""
    if DEVICE:
        tl.store(out_ptr, cuda.globaltimer())
    else:
        tl.store(out_ptr, tl.full([], 1, tl.int64))
