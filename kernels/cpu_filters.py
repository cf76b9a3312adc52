"""Top-k, top-p and min-p, with the semantics of `engine.sampling` token for token.

The few candidates near the top are gathered, and the lowest score to keep is found among them.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.cpu_host import kernel
from kernels.cpu_sampling import BEST, SCORE_SUM, best_item, gumbel_of, philox, uniform_of

_FIRST_WIDTH, _WIDEN = 8.0, 4.0  # how far below the best score candidates are gathered


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
    top = np.float32(partials[best_item(partials, items), BEST])
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
