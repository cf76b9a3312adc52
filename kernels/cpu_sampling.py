"""Sampling inside the decode step, with the semantics of `engine.sampling` token for token.

The LM head's items leave, for their part of the vocabulary, what `Partial` lists; one thread then
combines these few numbers. Without filters that is all there is to do. With top-k, top-p or min-p
it also gathers the few candidates near the top and finds the lowest score to keep among them.
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
_FIRST_WIDTH, _WIDEN = 8.0, 4.0  # how far below the best score candidates are gathered


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
def combine_best(partials: np.ndarray, items: int) -> int:
    """The token of the best item; the lowest one where items tie."""
    chosen = 0
    for item in range(1, items):
        if partials[item, BEST] > partials[chosen, BEST]:
            chosen = item
    return int(partials[chosen, BEST_ID])


@kernel
def choose_filtered(
    scores: np.ndarray,  # float32 [vocab]
    vocab: int,
    partials: np.ndarray,  # [items, PARTIALS]; BEST is the largest score
    items: int,
    seed: int,
    position: int,
    top_k: int,
    top_p: float,
    min_p: float,
    values: np.ndarray,  # float32 [vocab], scratch
    sorting: np.ndarray,  # float32 [vocab], scratch
    ids: np.ndarray,  # int64 [vocab], scratch
    words: np.ndarray,  # uint64 [4], scratch
) -> int:
    """The token drawn after top-k, top-p and min-p, in this order; ties with the last are kept."""
    best_item = 0
    for item in range(1, items):
        if partials[item, BEST] > partials[best_item, BEST]:
            best_item = item
    top = np.float32(partials[best_item, BEST])
    mass = 0.0
    for item in range(items):
        mass += partials[item, SCORE_SUM] * math.exp(partials[item, BEST] - top)
    count = _gather(scores, vocab, top, mass, top_k, top_p, min_p, values, ids)
    lowest = np.float32(-np.inf)
    if 0 < top_k < vocab:
        lowest = _threshold(values, count, lowest, top, float(top_k), False, sorting)
        mass = _mass(values, count, lowest, top)
    if top_p < 1:
        lowest = _threshold(values, count, lowest, top, top_p * mass, True, sorting)
    if min_p > 0:
        lowest = max(lowest, top + np.float32(math.log(min_p)))
    best, chosen, block = np.float32(-np.inf), ids[0], -1
    for i in range(count):
        if values[i] < lowest:
            continue
        if ids[i] // 4 != block:
            block = ids[i] // 4
            philox(block, position, seed, words)
        value = values[i] + gumbel_of(uniform_of(words[ids[i] % 4]))
        if value > best:
            best, chosen = value, ids[i]
    return chosen


@kernel
def _gather(
    scores: np.ndarray, vocab: int, top: np.float32, mass: float, top_k: int, top_p: float,
    min_p: float, values: np.ndarray, ids: np.ndarray,
) -> int:  # fmt: skip
    """Collect the best tokens, in order, surely all that the filters keep; returns how many."""
    width = _FIRST_WIDTH
    if top_k == 0 and top_p >= 1:
        width = -math.log(min_p) + 1e-3  # min-p alone says where to look
    while True:
        cut = top - np.float32(width)
        count = 0
        for token in range(vocab):
            if scores[token] >= cut:
                values[count], ids[count] = scores[token], token
                count += 1
        if count == vocab or width > 1e30:
            return count
        if 0 < top_k < vocab:
            enough = count >= top_k
        elif top_p < 1:
            enough = _mass(values, count, np.float32(-np.inf), top) > top_p * mass * (1 + 1e-6)
        else:
            enough = True
        if enough:
            return count
        width = width * _WIDEN if width < 1e3 else 1e31


@kernel
def _mass(values: np.ndarray, count: int, lowest: np.float32, top: np.float32) -> float:
    """Sum of exp(value - top) over the values that are at least `lowest`."""
    total = 0.0
    for i in range(count):
        if values[i] >= lowest:
            total += math.exp(values[i] - top)
    return total


@kernel
def _threshold(
    values: np.ndarray, count: int, lowest: np.float32, top: np.float32, target: float,
    weighted: bool, work: np.ndarray,
) -> np.float32:  # fmt: skip
    """The value at which the running total from the largest value down first reaches `target`.

    Each value >= `lowest` counts exp(value - top) if `weighted`, else 1. Quickselect by weight:
    linear time. Rounding may leave the total short of `target`: then the smallest value.
    """
    size = 0
    for i in range(count):
        if values[i] >= lowest:
            work[size] = values[i]
            size += 1
    low, high, before = 0, size, 0.0
    while True:
        pivot = work[(low + high) // 2]
        above, upto, lower = 0.0, 0.0, high
        i, greater = low, low
        while i < lower:  # > pivot | == pivot | not looked at | < pivot
            value = work[i]
            weight = math.exp(value - top) if weighted else 1.0
            if value > pivot:
                above += weight
                work[i], work[greater] = work[greater], value
                greater += 1
                i += 1
            elif value == pivot:
                upto += weight
                i += 1
            else:
                lower -= 1
                work[i], work[lower] = work[lower], value
        if greater > low and before + above >= target:
            high = greater
        elif lower == high or before + above + upto >= target:
            return pivot
        else:
            before += above + upto
            low = lower
