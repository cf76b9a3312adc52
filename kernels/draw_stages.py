"""What one program does of the draw, wherever the program comes from; as kernels/step_stages.py.

`top_ptr` [HEADS] holds the largest score of each program of the head.
"""

import triton
import triton.language as tl

from kernels.sampling import DIGITS, best_of, mass_above, ordered, scores_of

_NEAR = tl.constexpr("")  # the default cache modifier
_NONE = tl.constexpr(-3.0e38)
_NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def scores_from(
    start, logits_ptr, seen_ptr, penalty, temperature,
    N: tl.constexpr, BLOCK: tl.constexpr, CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """(ids, which exist, scores) of BLOCK vocabulary entries from `start` on."""
    ids = start + tl.arange(0, BLOCK)
    present = ids < N
    logits = tl.load(logits_ptr + ids, mask=present, other=_NONE, cache_modifier=CACHE)
    seen = tl.load(seen_ptr + ids, mask=present, other=0, cache_modifier=CACHE)
    return ids, present, scores_of(logits, seen, penalty, temperature)


@triton.jit
def largest_score(top_ptr, HEADS: tl.constexpr, BLOCK_H: tl.constexpr, CACHE: tl.constexpr = _NEAR):
    """The largest score of the whole vocabulary."""
    h = tl.arange(0, BLOCK_H)
    tops = tl.load(top_ptr + h, mask=h < HEADS, other=_NONE, cache_modifier=CACHE)
    return tl.max(tops, axis=0)


@triton.jit
def measure_block(
    block, logits_ptr, seen_ptr, penalty, temperature, top, floor, low, shift, above_ptr, mass_ptr,
    N: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, COUNT: tl.constexpr,
    CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """One block's part of a pass of the threshold search, CHUNK entries at a time.

    Writes `above_ptr` [block, DIGITS] and `mass_ptr` [block], see `kernels.sampling.mass_above`.
    """
    above = tl.zeros([DIGITS], tl.float32)
    mass = 0.0
    for start in range(0, BLOCK, CHUNK):
        _, present, scores = scores_from(
            block * BLOCK + start, logits_ptr, seen_ptr, penalty, temperature, N, CHUNK, CACHE
        )
        more_above, more_mass = mass_above(scores, present, floor, top, low, shift, COUNT)
        above += more_above
        mass += more_mass
    tl.store(above_ptr + block * DIGITS + tl.arange(0, DIGITS), above)
    tl.store(mass_ptr + block, mass)


@triton.jit
def pick_block(
    block, logits_ptr, seen_ptr, penalty, temperature, top, threshold, log_min_p, seed, position,
    best_ptr, best_id_ptr,
    N: tl.constexpr, BLOCK: tl.constexpr, CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """One block's part of the draw among the scores that pass the filters."""
    ids, kept, scores = scores_from(
        block * BLOCK, logits_ptr, seen_ptr, penalty, temperature, N, BLOCK, CACHE
    )
    kept &= (scores >= top + log_min_p) & (ordered(scores) >= threshold)
    value, winner = best_of(scores, ids, kept, seed, position, temperature)
    tl.store(best_ptr + block, value)
    tl.store(best_id_ptr + block, winner)


@triton.jit
def settle(
    best_ptr, best_id_ptr, parts, N: tl.constexpr, BLOCK_P: tl.constexpr,
    CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """The token drawn, from the winners of `parts` programs: int32. Equal sums: the lower id."""
    p = tl.arange(0, BLOCK_P)
    value = tl.load(best_ptr + p, mask=p < parts, other=_NONE, cache_modifier=CACHE)
    ids = tl.load(best_id_ptr + p, mask=p < parts, other=_NO_ID, cache_modifier=CACHE)
    token = tl.min(tl.where(value == tl.max(value, axis=0), ids, _NO_ID), axis=0)
    return tl.minimum(token, N - 1)  # there is no winner among NaN


@triton.jit
def log_probability(
    token, logits_ptr, exp_max_ptr, exp_sum_ptr,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, CACHE: tl.constexpr = _NEAR,
):  # fmt: skip
    """Natural logarithm of the token's probability under the unmodified logits: float32."""
    h = tl.arange(0, BLOCK_H)
    exp_max = tl.load(exp_max_ptr + h, mask=h < HEADS, other=_NONE, cache_modifier=CACHE)
    exp_sum = tl.load(exp_sum_ptr + h, mask=h < HEADS, other=0.0, cache_modifier=CACHE)
    top = tl.max(exp_max, axis=0)
    log_total = top + tl.log(tl.sum(exp_sum * tl.exp(exp_max - top), axis=0))
    return tl.load(logits_ptr + token, cache_modifier=CACHE) - log_total


@triton.jit
def embed_token(embed_ptr, token, x_ptr, seen_ptr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """x = the token's embedding, float32 [K]; the token counts as seen from now on."""
    tl.store(seen_ptr + token, 1)
    k = tl.arange(0, BLOCK_K)
    row = tl.load(embed_ptr + token.to(tl.int64) * K + k, mask=k < K, other=0.0)
    tl.store(x_ptr + k, row.to(tl.float32), mask=k < K)
