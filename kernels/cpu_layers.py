"""The parts that stages are made of: norms, dot products of 16 rows, RoPE, attention, look-ups.

Each has a PyTorch twin of the same meaning in kernels/reference.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from engine import mailbox as mb
from kernels.cpu_blocks import DOT_Q4_0, DOT_Q4_1, DOT_Q8_0
from kernels.cpu_memory import narrow_bf16, read_bf16, read_f16, read_f32, read_u8, write_f32
from kernels.cpu_state import (
    ADDRESS,
    BF16,
    CHUNK,
    COLUMNS,
    F32,
    FORMAT,
    HEAD_DIM,
    HEADS,
    ITEMS,
    KV_BF16,
    KV_HEADS,
    Q4_0,
    Q4_1,
    Q8_0,
    ROWS,
    STRIDE,
    Own,
    Shared,
)
from kernels.cpu_vector import (
    DIGITS,
    DOT_ROWS_BF16,
    DOT_ROWS_F32,
    GROUP,
    QUANT,
    WEIGHTED_SUM_BF16,
    WEIGHTED_SUM_F32,
    exp_sum,
    largest,
    quantise_block,
    sum_squares,
)


@njit(error_model="numpy")
def share_of(matrix: np.ndarray, item: int) -> tuple[int, int]:
    """Groups first .. last - 1 of `item`: shares differ by one group at most."""
    groups = (matrix[ROWS] + GROUP - 1) // GROUP
    items = matrix[ITEMS]
    return groups * item // items, groups * (item + 1) // items


@njit(error_model="numpy")
def rows_of(matrix: np.ndarray, group: int) -> tuple[int, int]:
    """(first row, how many) of a group; the last group may be short."""
    start = group * GROUP
    return start, min(GROUP, matrix[ROWS] - start)


@njit(error_model="numpy")
def inverse_rms(x: np.ndarray, eps: float) -> np.float32:
    """1 / sqrt(mean of squares + eps). Twin: `rms_norm`."""
    n = x.shape[0]
    return np.float32(1.0) / np.sqrt(sum_squares(x.ctypes.data, n) / np.float32(n) + eps)


@njit(error_model="numpy")
def normalise(x: np.ndarray, weight: np.ndarray, eps: float, columns: int, out: np.ndarray) -> None:
    """RMSNorm of x[:columns] into `out`, one row after another. Twin: `rms_norm`."""
    n = weight.shape[0]
    for t in range(columns):
        scale = inverse_rms(x[t], eps)
        for i in range(n):
            out[t * n + i] = x[t, i] * scale * weight[i]


@njit(error_model="numpy")
def prepare(own: Own, source: int, matrix: np.ndarray, columns: int) -> int:
    """Make the input at `source` (float32 [columns, n]) ready for `dot_group`; its address.

    For block formats it is quantised into `own`, block by block. Twin: `quantise`.
    """
    if matrix[FORMAT] <= BF16:
        return source
    n = matrix[COLUMNS]
    quants, scales = own.quants.ctypes.data, own.scales.ctypes.data
    totals = own.totals.ctypes.data
    for t in range(columns):
        for block in range(n // QUANT):
            place = block * columns + t
            quantise_block(
                source + 4 * (t * n + block * QUANT),
                quants + place * DIGITS * QUANT,
                scales + 4 * place,
                totals + 4 * place * DIGITS,
            )
    return source


@njit(error_model="numpy")
def columns_for(count: int) -> int:
    """The columns of the narrowest kernel for `count` tokens."""
    return count if count <= 4 else CHUNK


def _by_columns(kernels: Sequence[Any]) -> Any:
    """One function of the kernels for each of `WIDTHS`; the number of columns comes first."""
    one, two, three, four, eight = kernels

    @njit(error_model="numpy")
    def dot(columns: int, a: int, b: int, c: int, d: int, e: int, f: int, g: int) -> None:
        if columns == 1:
            one(a, b, c, d, e, f, g)
        elif columns == 2:
            two(a, b, c, d, e, f, g)
        elif columns == 3:
            three(a, b, c, d, e, f, g)
        elif columns == 4:
            four(a, b, c, d, e, f, g)
        else:
            eight(a, b, c, d, e, f, g)

    return dot


_dot_rows_bf16, _dot_rows_f32 = _by_columns(DOT_ROWS_BF16), _by_columns(DOT_ROWS_F32)
_weighted_bf16, _weighted_f32 = _by_columns(WEIGHTED_SUM_BF16), _by_columns(WEIGHTED_SUM_F32)
_dot_q4_0, _dot_q4_1, _dot_q8_0 = (_by_columns(made) for made in (DOT_Q4_0, DOT_Q4_1, DOT_Q8_0))


@njit(error_model="numpy")
def dot_group(
    own: Own, source: int, matrix: np.ndarray, group: int, columns: int, tile: np.ndarray
) -> None:
    """tile[t, r] = row `group` * 16 + r of the matrix times input column t. Twin: `linear`."""
    form, n, out = matrix[FORMAT], matrix[COLUMNS], tile.ctypes.data
    weights = matrix[ADDRESS] + group * matrix[STRIDE]
    if form <= BF16:
        rows, row_bytes = rows_of(matrix, group)[1], matrix[STRIDE]
        weights += group * (GROUP - 1) * row_bytes  # its stride is one row's, not a group's
        if form == BF16:
            _dot_rows_bf16(columns, weights, row_bytes, rows, n, source, out, GROUP)
        else:
            _dot_rows_f32(columns, weights, row_bytes, rows, n, source, out, GROUP)
        return
    blocks, quants = n // QUANT, own.quants.ctypes.data
    scales, totals = own.scales.ctypes.data, own.totals.ctypes.data
    if form == Q4_1:
        _dot_q4_1(columns, weights, blocks, quants, scales, totals, out, GROUP)
    elif form == Q4_0:
        _dot_q4_0(columns, weights, blocks, quants, scales, totals, out, GROUP)
    else:
        _dot_q8_0(columns, weights, blocks, quants, scales, totals, out, GROUP)


@njit(error_model="numpy")
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


@njit(error_model="numpy")
def rotate(s: Shared, source: np.ndarray, layer: int, which: int, position: int,
           out: np.ndarray) -> None:  # fmt: skip
    """One head with its norm (`which`: 0 query, 1 key), if the model has any, and RoPE."""
    n = s.shape[HEAD_DIM]
    half = n // 2
    for i in range(n):
        out[i] = source[i]
    if s.qk_norms.shape[0] > 0:
        scale = inverse_rms(source, s.eps[0])
        for i in range(n):
            out[i] = source[i] * scale * s.qk_norms[layer, which, i]
    for i in range(half):
        low, high, c, sine = out[i], out[half + i], s.cos[position, i], s.sin[position, i]
        out[i] = low * c - high * sine
        out[half + i] = high * c + low * sine


@njit(error_model="numpy")
def cache_row(s: Shared, base: int, layer: int, kv_head: int, position: int) -> int:
    """The address of one position's key or value in the cache."""
    width = 2 if s.shape[KV_BF16] else 4
    row = (layer * s.shape[KV_HEADS] + kv_head) * s.words[mb.CAPACITY] + position
    return base + row * s.shape[HEAD_DIM] * width


@njit(error_model="numpy")
def append(s: Shared, source: np.ndarray, row: int) -> None:
    """Write one head's key or value into the cache, in the cache's dtype."""
    for i in range(s.shape[HEAD_DIM]):
        if s.shape[KV_BF16]:
            narrow_bf16(source[i], row + 2 * i)
        else:
            write_f32(source[i], row + 4 * i)


@njit(error_model="numpy")
def rotate_and_append(s: Shared, own: Own, layer: int, kv_head: int, t: int, position: int) -> None:
    """Key and value of one key head and token into the cache. Twin: `rope`."""
    n, q_size = s.shape[HEAD_DIM], s.shape[HEADS] * s.shape[HEAD_DIM]
    key = q_size + kv_head * n
    value = key + s.shape[KV_HEADS] * n
    rotate(s, s.qkv[t, key : key + n], layer, 1, position, own.heads[0])
    append(s, own.heads[0], cache_row(s, s.words[mb.KEYS], layer, kv_head, position))
    values = cache_row(s, s.words[mb.VALUES], layer, kv_head, position)
    append(s, s.qkv[t, value : value + n], values)


@njit(error_model="numpy")
def attend(s: Shared, own: Own, layer: int, head: int, count: int, position: int) -> None:
    """One query head of `count` tokens from `position` on, each over every position up to its
    own. Twin: `attention`.
    """
    n, columns = s.shape[HEAD_DIM], columns_for(count)
    kv_head = head // (s.shape[HEADS] // s.shape[KV_HEADS])
    for t in range(count):
        rotate(s, s.qkv[t, head * n : (head + 1) * n], layer, 0, position + t, own.heads[t])
    keys = cache_row(s, s.words[mb.KEYS], layer, kv_head, 0)
    values = cache_row(s, s.words[mb.VALUES], layer, kv_head, 0)
    queries, weights, step = own.heads.ctypes.data, own.weights.ctypes.data, own.weights.shape[1]
    longest = position + count
    if s.shape[KV_BF16]:
        _dot_rows_bf16(columns, keys, 2 * n, longest, n, queries, weights, step)
    else:
        _dot_rows_f32(columns, keys, 4 * n, longest, n, queries, weights, step)
    for t in range(count):
        own.inverses[t] = soften(own.weights[t], position + t + 1, longest, n)
    out = s.attended[:, head * n : (head + 1) * n]
    out[:columns] = np.float32(0.0)
    out_at, out_step = out.ctypes.data, s.attended.shape[1]
    if s.shape[KV_BF16]:
        _weighted_bf16(columns, weights, step, values, longest, n, out_at, out_step)
    else:
        _weighted_f32(columns, weights, step, values, longest, n, out_at, out_step)
    for t in range(count):
        for i in range(n):
            out[t, i] *= own.inverses[t]


@njit(error_model="numpy")
def soften(weights: np.ndarray, length: int, longest: int, head_dim: int) -> np.float32:
    """Softmax, but for a factor that is returned, of the first `length` products of a query and
    keys; 0 from there up to `longest`.
    """
    whole = (length + GROUP - 1) // GROUP * GROUP
    weights[length:whole] = np.float32(-np.inf)
    at, scale = weights.ctypes.data, np.float32(1.0 / math.sqrt(head_dim))
    total = exp_sum(at, at, whole, scale, scale * largest(at, whole))
    weights[length:longest] = np.float32(0.0)
    return np.float32(1.0) / total
