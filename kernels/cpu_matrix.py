"""Matrices of any format times up to eight columns, 16 rows at a time; and rows looked up.

Each has a PyTorch twin of the same meaning in kernels/reference.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels.cpu_blocks import DOT_Q4_0, DOT_Q4_1, DOT_Q8_0
from kernels.cpu_host import kernel
from kernels.cpu_memory import read_bf16, read_f16, read_f32, read_u8
from kernels.cpu_quantise import DIGITS, QUANT, SCALE_BYTES, quantise_block
from kernels.cpu_state import (
    ADDRESS,
    BF16,
    COLUMNS,
    F32,
    FORMAT,
    ITEMS,
    Q4_0,
    Q4_1,
    Q8_0,
    ROWS,
    STRIDE,
)
from kernels.cpu_vector import (
    DOT_ROWS_BF16,
    DOT_ROWS_F32,
    GROUP,
    TILE,
    WEIGHTED_SUM_BF16,
    WEIGHTED_SUM_F32,
)


@kernel
def share_of(matrix: np.ndarray, item: int) -> tuple[int, int]:
    """Groups first .. last - 1 of `item`: shares differ by one group at most."""
    groups = (matrix[ROWS] + GROUP - 1) // GROUP
    items = matrix[ITEMS]
    return groups * item // items, groups * (item + 1) // items


@kernel
def rows_of(matrix: np.ndarray, group: int) -> tuple[int, int]:
    """(first row, how many) of a group; the last group may be short."""
    start = group * GROUP
    return start, min(GROUP, matrix[ROWS] - start)


@kernel
def prepare(source: int, matrix: np.ndarray, columns: int, room: int) -> int:
    """Make the input at `source` (float32 [columns, n]) ready for `dot_group`; its address.

    For block formats it is quantised into `room`, block by block: of `TILE` columns, then of the
    next; what else belongs to the blocks lies behind them all. Twin: `quantise`.
    """
    if matrix[FORMAT] <= BF16:
        return source
    n = matrix[COLUMNS]
    blocks, scales = n // QUANT, room + columns * n * DIGITS
    for t in range(columns):
        first = t // TILE * TILE
        width = min(TILE, columns - first)
        for block in range(blocks):
            place = first * blocks + block * width + t - first
            values, digits = source + 4 * (t * n + block * QUANT), room + place * DIGITS * QUANT
            quantise_block(values, digits, scales + place * SCALE_BYTES)
    return room


def _by_columns(kernels: Sequence[Any]) -> Any:
    """One function of the kernels for each of `WIDTHS`; the number of columns comes first."""
    one, two, three, four = kernels

    @kernel
    def dot(columns: int, *rest: int) -> None:
        if columns == 1:
            one(*rest)
        elif columns == 2:
            two(*rest)
        elif columns == 3:
            three(*rest)
        else:
            four(*rest)

    return dot


_dot_rows_bf16, _dot_rows_f32 = _by_columns(DOT_ROWS_BF16), _by_columns(DOT_ROWS_F32)
_weighted_bf16, _weighted_f32 = _by_columns(WEIGHTED_SUM_BF16), _by_columns(WEIGHTED_SUM_F32)
_dot_q4_0, _dot_q4_1, _dot_q8_0 = (_by_columns(made) for made in (DOT_Q4_0, DOT_Q4_1, DOT_Q8_0))


@kernel
def dot_group(source: int, matrix: np.ndarray, group: int, columns: int, out: int) -> None:
    """out[t, r] = row `group` * 16 + r of the matrix times input column t, float32 [columns, 16].

    `source`: from `prepare`. Twin: `linear`.
    """
    form, n = matrix[FORMAT], matrix[COLUMNS]
    weights = matrix[ADDRESS] + group * matrix[STRIDE]
    if form <= BF16:
        rows, row_bytes = rows_of(matrix, group)[1], matrix[STRIDE]
        weights += group * (GROUP - 1) * row_bytes  # its stride is one row's, not a group's
        dot_rows(form == BF16, columns, weights, row_bytes, rows, n, source, out, GROUP)
        return
    blocks, all_scales = n // QUANT, source + columns * n * DIGITS
    for first in range(0, columns, TILE):
        some, target = min(TILE, columns - first), out + 4 * GROUP * first
        quants, scales = source + first * n * DIGITS, all_scales + first * blocks * SCALE_BYTES
        if form == Q4_1:
            _dot_q4_1(some, weights, blocks, quants, scales, target, GROUP)
        elif form == Q4_0:
            _dot_q4_0(some, weights, blocks, quants, scales, target, GROUP)
        else:
            _dot_q8_0(some, weights, blocks, quants, scales, target, GROUP)


@kernel
def dot_rows(
    bf16: bool, columns: int, w: int, row_bytes: int, rows: int, n: int, x: int, out: int, step: int
) -> None:
    """Any number of columns; see `cpu_vector.DOT_ROWS_BF16`."""
    for first in range(0, columns, TILE):
        some, source, target = min(TILE, columns - first), x + 4 * n * first, out + 4 * step * first
        if bf16:
            _dot_rows_bf16(some, w, row_bytes, rows, n, source, target, step)
        else:
            _dot_rows_f32(some, w, row_bytes, rows, n, source, target, step)


@kernel
def weighted_sum(
    bf16: bool, columns: int, p: int, p_step: int, v: int, rows: int, n: int, out: int, step: int
) -> None:
    """Any number of columns; see `cpu_vector.WEIGHTED_SUM_BF16`."""
    for first in range(0, columns, TILE):
        some = min(TILE, columns - first)
        shares, target = p + 4 * p_step * first, out + 4 * step * first
        if bf16:
            _weighted_bf16(some, shares, p_step, v, rows, n, target, step)
        else:
            _weighted_f32(some, shares, p_step, v, rows, n, target, step)


@kernel
def embed(matrix: np.ndarray, token: int, out: np.ndarray) -> None:
    """Row `token` of the embedding as float32. Twin: `embed`."""
    form, n = matrix[FORMAT], matrix[COLUMNS]
    row = matrix[ADDRESS] + token * matrix[STRIDE]
    if form == F32:
        for i in range(n):
            out[i] = read_f32(row + 4 * i)
        return
    if form == BF16:
        for i in range(n):
            out[i] = read_bf16(row + 2 * i)
        return
    group, r = matrix[ADDRESS] + token // GROUP * matrix[STRIDE], token % GROUP
    block_bytes = GROUP * QUANT if form == Q8_0 else GROUP * QUANT // 2
    scales = group + n // QUANT * block_bytes
    for block in range(n // QUANT):
        place = 2 * (block * GROUP + r)
        scale, minimum = read_f16(scales + place), np.float32(0.0)
        if form == Q4_0:
            minimum = np.float32(-8.0) * scale
        elif form == Q4_1:
            minimum = read_f16(scales + n // QUANT * 2 * GROUP + place)
        for c in range(QUANT):
            kept = c if form == Q8_0 else c % (QUANT // 2)
            byte = read_u8(group + block * block_bytes + kept // 4 * 4 * GROUP + r * 4 + kept % 4)
            if form == Q8_0:
                value = np.float32(byte - 256 if byte > 127 else byte)
            else:
                value = np.float32(byte >> 4 if c >= QUANT // 2 else byte & 15)
            out[block * QUANT + c] = value * scale + minimum
