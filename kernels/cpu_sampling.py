"""Sampling inside the decode step, with the semantics of `engine.sampling` token for token.

The LM head's items leave, for their part of the vocabulary, what `PARTIALS` counts; one thread then
combines these few numbers. Without filters (kernels/cpu_filters.py) that is all there is to do.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.cpu_host import kernel

# What an item of the LM head leaves behind, float64
LOGIT_MAX, LOGIT_SUM, BEST, BEST_ID, SCORE_SUM = range(5)
PARTIALS = 5

_MASK32 = np.uint64(0xFFFFFFFF)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_SHIFT = np.uint64(32)
_BELOW_ONE = np.float32(1 - 2.0**-24)
# -log(-log1p(-u)) <= -log(u): noise above i needs a uniform below exp(-i).
_BOUNDS = np.exp(-np.arange(24)).astype(np.float32)
_LARGEST_NOISE = 22.9  # of the smallest uniform, 2**-33


@kernel
def philox(block: int, position: int, seed: int, out: np.ndarray) -> None:
    """Four 32-bit words of Philox4x32-10 for counter (block, position, 0, 0) into uint64 [4]."""
    c0, c1 = np.uint64(block), np.uint64(position)
    c2, c3 = np.uint64(0), np.uint64(0)
    k0, k1 = np.uint64(seed) & _MASK32, np.uint64(seed) >> _SHIFT
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ k0,
            p1 & _MASK32,
            (p0 >> _SHIFT) ^ c3 ^ k1,
            p0 & _MASK32,
        )
        k0, k1 = (k0 + _W0) & _MASK32, (k1 + _W1) & _MASK32
    out[0], out[1], out[2], out[3] = c0, c1, c2, c3


@kernel
def uniform_of(word: int) -> np.float32:
    """A uniform in (0, 1) from a 32-bit word, rounded as `engine.sampling.gumbel_noise` does."""
    value = (np.float32(word) + np.float32(0.5)) * np.float32(2.0**-32)
    return min(value, _BELOW_ONE)


@kernel
def gumbel_of(uniform: np.float32) -> np.float32:
    """Standard Gumbel noise of a uniform."""
    return -np.log(-np.log1p(-uniform))


@kernel
def make_scores(
    logits: np.ndarray,  # float32 [vocab]
    scores: np.ndarray,  # float32 [vocab], written
    seen: np.ndarray,  # uint8 [vocab]: tokens of the context, see `cpu_state.Shared`
    column: int,  # of a pass: drafts up to it are of the context, too
    penalty: np.float32,
    temperature: np.float32,  # 0: leave the scale alone
    first: int,
    last: int,
) -> None:
    """Repetition penalty and temperature over tokens first .. last - 1."""
    divisor = temperature if temperature > 0 else np.float32(1.0)
    if penalty == np.float32(1.0):
        for token in range(first, last):
            scores[token] = logits[token] / divisor
        return
    for token in range(first, last):
        value = logits[token]
        penalised = value * penalty if value < 0 else value / penalty
        scores[token] = (penalised if 0 < seen[token] <= 1 + column else value) / divisor


@kernel
def noisiest(
    scores: np.ndarray, seed: int, position: int, first: int, last: int, words: np.ndarray
) -> tuple[np.float32, int]:
    """(score + noise, token) of the best of tokens first .. last - 1. `words`: uint64 [4] scratch.

    The logarithms are only taken where the token could still win.
    """
    best, chosen = np.float32(-np.inf), first
    for block in range(first // 4, (last + 3) // 4):
        philox(block, position, seed, words)
        for token in range(max(first, 4 * block), min(last, 4 * block + 4)):
            score = scores[token]
            uniform = uniform_of(words[token - 4 * block])
            gap = best - score
            if gap > _LARGEST_NOISE or (gap > 0 and uniform > _BOUNDS[int(gap)]):
                continue
            value = score + gumbel_of(uniform)
            if value > best:
                best, chosen = value, token
    return best, chosen


@kernel
def combine_logsumexp(partials: np.ndarray, items: int) -> float:
    """The logsumexp of all logits, from the items' maxima and sums."""
    top = partials[0, LOGIT_MAX]
    for item in range(1, items):
        top = max(top, partials[item, LOGIT_MAX])
    total = 0.0
    for item in range(items):
        total += partials[item, LOGIT_SUM] * math.exp(partials[item, LOGIT_MAX] - top)
    return top + math.log(total)


@kernel
def best_item(partials: np.ndarray, items: int) -> int:
    """The item with the best score; the first where items tie."""
    chosen = 0
    for item in range(1, items):
        if partials[item, BEST] > partials[chosen, BEST]:
            chosen = item
    return chosen


@kernel
def combine_best(partials: np.ndarray, items: int) -> int:
    """The token of the best item; the lowest one where items tie."""
    return int(partials[best_item(partials, items), BEST_ID])
