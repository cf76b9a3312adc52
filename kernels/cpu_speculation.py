"""Drafting inside the decode step: the twins of `look_up` and `Pace` in engine/speculation.py.

They follow the same rules to the last digit, so that an engine that drafts by itself and one that
is steered by the host do the same.
"""

from __future__ import annotations

import numpy as np

from engine import speculation
from kernels.cpu_host import kernel

# `Shared.pace`, float64: how often a drafted token was right, and what a pass of each width cost
ACCEPTANCE = 0  # COST of width w is at index w
PACE_NUMBERS = speculation.MAX_WIDTH + 1

_MAX_CONTEXT = speculation.MAX_CONTEXT
_LONGEST, _SHORTEST = speculation.LONGEST_MATCH, speculation.SHORTEST_MATCH
_RATE, _WORTH_IT = speculation.RATE, speculation.WORTH_IT
_FIRST_ACCEPTANCE = speculation.FIRST_ACCEPTANCE
_FIRST_COST_OF_A_COLUMN = speculation.FIRST_COST_OF_A_COLUMN


@kernel
def look_up(context: np.ndarray, end: int, count: int) -> int:
    """Draft up to `count` tokens after context[:end], in their places behind it; how many."""
    best, found = _SHORTEST - 1, 0
    for at in range(end - 1, max(_SHORTEST - 1, end - _MAX_CONTEXT), -1):
        if context[at - 1] != context[end - 1] or context[at - 2] != context[end - 2]:
            continue
        size = 2
        while size < _LONGEST and size < at and context[at - 1 - size] == context[end - 1 - size]:
            size += 1
        if size > best:
            best, found = size, at
            if size == _LONGEST:
                break
    if found == 0:
        return 0
    for i in range(count):  # where it reaches the end, it reads what it has drafted
        context[end + i] = context[found + i]
    return count


@kernel
def pace_new_reply(pace: np.ndarray) -> None:
    """See `Pace.new_reply`."""
    pace[ACCEPTANCE] = _FIRST_ACCEPTANCE
    for width in range(2, PACE_NUMBERS):
        guess = _guess(pace, width)
        if 0 < guess < pace[width]:
            pace[width] += _RATE * (guess - pace[width])


@kernel
def pace_width(pace: np.ndarray, drafted: int, widest: int) -> int:
    """See `Pace.width`."""
    best, most = 1, _WORTH_IT / _cost_of(pace, 1)
    expected, right = 1.0, 1.0
    for width in range(2, min(drafted + 1, widest) + 1):
        right *= pace[ACCEPTANCE]
        expected += right
        rate = expected / _cost_of(pace, width)
        if rate > most:
            best, most = width, rate
    return best


@kernel
def pace_saw(pace: np.ndarray, accepted: int, rejected: bool) -> None:
    """See `Pace.saw`."""
    for _ in range(accepted):
        pace[ACCEPTANCE] += _RATE * (1 - pace[ACCEPTANCE])
    if rejected:
        pace[ACCEPTANCE] -= _RATE * pace[ACCEPTANCE]


@kernel
def pace_took(pace: np.ndarray, width: int, cost: float) -> None:
    """See `Pace.took`."""
    known = pace[width]
    expected = known if known > 0 else _guess(pace, width)
    if expected > 0:
        cost = min(cost, 2 * expected)
    pace[width] = known + _RATE * (cost - known) if known > 0 else cost


@kernel
def _cost_of(pace: np.ndarray, width: int) -> float:
    if pace[width] > 0:
        return pace[width]
    guess = _guess(pace, width)
    return guess if guess > 0 else 1 + _FIRST_COST_OF_A_COLUMN * (width - 1)


@kernel
def _guess(pace: np.ndarray, width: int) -> float:
    for nearest in range(width - 1, 0, -1):
        if pace[nearest] > 0:
            return pace[nearest] * (1 + _FIRST_COST_OF_A_COLUMN * (width - nearest))
    return 0.0
