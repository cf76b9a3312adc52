"""Sampling on the device, draw for draw the sampler of `engine.sampling`.

Filters act in its order: repetition penalty, temperature, top-k, top-p, min-p; ties with the
last token kept are kept; the draw is the argmax of score + Gumbel noise, noise being Philox of
(seed, position, token id); equal sums go to the lower id.

Top-k and top-p look for a threshold: the least value v for which the mass of scores above v (or
their count) is below a target. Floats are mapped to integers of the same order and v is found
digit by digit, 16 candidates a pass, exactly, whatever the distribution.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

DIGITS = tl.constexpr(16)  # candidates a pass, which settles four bits
_INT_MIN = tl.constexpr(-(2**31))
_INT_MAX = tl.constexpr(2**31 - 1)
_NONE = tl.constexpr(-3.0e38)  # below every score


@triton.jit
def gumbel_noise(seed, position, ids):
    """Standard Gumbel noise of `ids` (int32) at `position`: float32."""
    zero = tl.zeros_like(ids)
    w0, w1, w2, w3 = tl.philox(seed, ids >> 2, zero + position, zero, zero)
    odd, high = (ids & 1) != 0, (ids & 2) != 0
    word = tl.where(odd, tl.where(high, w3, w1), tl.where(high, w2, w0))
    uniform = (word.to(tl.uint32).to(tl.float32) + 0.5) * (2.0**-32)
    uniform = tl.minimum(uniform, 1.0 - 2.0**-24)
    # log1p(-u) as Kahan computes it: the rounding of 1 - u divides out.
    rest = 1.0 - uniform
    log1p = tl.where(rest == 1.0, -uniform, tl.log(rest) * tl.div_rn(-uniform, rest - 1.0))
    return -tl.log(-log1p)


@triton.jit
def scores_of(logits, seen, penalty, temperature):
    """Penalised logits over the temperature (undivided when it is 0)."""
    penalised = tl.where(logits < 0, logits * penalty, tl.div_rn(logits, penalty))
    scores = tl.where(seen != 0, penalised, logits)
    return tl.div_rn(scores, tl.where(temperature > 0, temperature, 1.0))


@triton.jit
def ordered(scores):
    """int32 that sort as the float32 `scores` do; -0 and +0, which are equal, give one value."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ _INT_MAX, bits)


@triton.jit
def best_of(scores, ids, kept, seed, position, temperature):
    """(value, id) of the winner among `kept`: (_NONE, INT_MAX) when there is none."""
    values = scores
    if temperature > 0:
        values += gumbel_noise(seed, position, ids)
    values = tl.where(kept, values, _NONE)
    value = tl.max(values, axis=0)
    winner = tl.min(tl.where(kept & (values == value), ids, _INT_MAX), axis=0)
    return value, winner


@triton.jit
def mass_above(
    scores,  # [BLOCK]
    present,  # bool [BLOCK]
    floor,  # int32: the threshold of an earlier filter, in `ordered` values
    top,  # the largest score
    low,  # int32: where this digit's candidates begin
    shift,  # and log2 of their distance
    COUNT: tl.constexpr,  # count scores instead of adding probabilities up
):
    """(mass above each candidate: float32 [DIGITS], all mass), over one block of scores.

    Masses are probabilities times a constant. Candidate j is the last value of digit j.
    """
    keys = ordered(scores)
    weight = tl.full(scores.shape, 1.0, tl.float32) if COUNT else tl.exp(scores - top)
    weight = tl.where(present & (keys >= floor), weight, 0.0)
    digit = tl.arange(0, DIGITS).to(tl.int64)
    candidates = (low.to(tl.int64) + ((digit + 1) << shift) - 1).to(tl.int32)
    above = tl.where(keys[:, None] > candidates[None, :], weight[:, None], 0.0)
    return tl.sum(above, axis=0), tl.sum(weight, axis=0)


@triton.jit
def next_low(
    above_ptr,  # float32 [BLOCKS, DIGITS] of the pass before
    mass_ptr,  # float32 [BLOCKS]
    low,
    shift,
    target,  # top_k with COUNT, else top_p
    BLOCKS: tl.constexpr,
    BLOCK_B: tl.constexpr,  # BLOCKS rounded up to a power of two
    COUNT: tl.constexpr,
):
    """Where the digits that follow begin: the first candidate with less than `target` above it."""
    b, digit = tl.arange(0, BLOCK_B), tl.arange(0, DIGITS)
    above = tl.load(
        above_ptr + b[:, None] * DIGITS + digit[None, :],
        mask=(b < BLOCKS)[:, None], other=0.0, cache_modifier=".cg",
    )  # fmt: skip
    mass = tl.load(mass_ptr + b, mask=b < BLOCKS, other=0.0, cache_modifier=".cg")
    wanted = target if COUNT else target * tl.sum(mass, axis=0)
    reached = (tl.sum(above, axis=0) >= wanted).to(tl.int32)
    return (low.to(tl.int64) + (tl.sum(reached, axis=0).to(tl.int64) << shift)).to(tl.int32)


@triton.jit
def publish(
    slot_ptr,  # int64 [3] in pinned host memory: id, time_ns, log-probability (float64's bits)
    count_ptr,  # int64 in pinned host memory
    token,
    logprob,
    count,
    DEVICE: tl.constexpr,  # False under the interpreter, which has no clock and no fences
):
    """Hand a token to the host. `count` is written last: who sees it sees the slot."""
    tl.store(slot_ptr, token.to(tl.int64))
    tl.store(slot_ptr + 2, logprob.to(tl.float64).to(tl.int64, bitcast=True))
    if DEVICE:
        tl.store(slot_ptr + 1, cuda.globaltimer())
        tl.debug_barrier()
        store_to_host(count_ptr, count)
    else:
        tl.store(slot_ptr + 1, count.to(tl.int64))
        tl.store(count_ptr, count.to(tl.int64))


@triton.jit
def store_to_host(word_ptr, value):
    """One thread writes an int64 to pinned host memory, after everything it has written before."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred %first;
        .reg .u32 %thread;
        mov.u32 %thread, %tid.x;
        setp.eq.u32 %first, %thread, 0;
        @%first st.release.sys.global.u64 [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,l",
        [word_ptr.to(tl.int64), value.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
