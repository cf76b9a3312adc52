"""The parts that stages are made of: norms, dot products of 16 rows, RoPE, attention, look-ups.

Each has a PyTorch twin of the same meaning in kernels/reference.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine import mailbox as mb
from kernels.cpu_blocks import DOT_Q4_0, DOT_Q4_1, DOT_Q8_0
from kernels.cpu_elements import rotate_pairs, scale_row, store_row_bf16, store_row_f32
from kernels.cpu_host import kernel, part
from kernels.cpu_memory import read_bf16, read_f16, read_f32, read_u8
from kernels.cpu_state import (
    ADDRESS,
    BF16,
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
    SCALE_BYTES,
    TILE,
    WEIGHTED_SUM_BF16,
    WEIGHTED_SUM_F32,
    exp_sum,
    largest,
    quantise_block,
    sum_squares,
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
def inverse_rms(x: np.ndarray, eps: float) -> np.float32:
    """1 / sqrt(mean of squares + eps). Twin: `rms_norm`."""
    n = x.shape[0]
    return np.float32(1.0) / np.sqrt(sum_squares(x.ctypes.data, n) / np.float32(n) + eps)


@kernel
def normalise(x: np.ndarray, weight: np.ndarray, eps: float, columns: int, out: np.ndarray) -> None:
    """RMSNorm of x[:columns] into `out`, one row after another. Twin: `rms_norm`."""
    n = weight.shape[0]
    for t in range(columns):
        scale, target = inverse_rms(x[t], eps), out.ctypes.data + 4 * n * t
        scale_row(x[t].ctypes.data, weight.ctypes.data, scale, n, target)


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


@kernel
def rotate(
    source: np.ndarray, norm: np.ndarray, eps: float, cos: np.ndarray, sin: np.ndarray, out: int
) -> None:
    """One head with its norm, if it has any (`norm` is not empty), and RoPE. Twin: `rope`."""
    x, half = source.ctypes.data, cos.shape[0]
    if norm.shape[0] > 0:
        scale_row(x, norm.ctypes.data, inverse_rms(source, eps), 2 * half, out)
        x = out
    rotate_pairs(x, cos.ctypes.data, sin.ctypes.data, half, out)


@part
def rotate_head(
    s: Shared, source: np.ndarray, layer: int, which: int, position: int, out: int
) -> None:
    """`rotate` a query (`which` 0) or key (1) of a layer."""
    norm = s.qk_norms[layer, which] if s.qk_norms.shape[0] > 0 else source[:0]
    rotate(source, norm, s.eps[0], s.cos[position], s.sin[position], out)


@part
def cache_row(s: Shared, base: int, layer: int, kv_head: int, position: int) -> int:
    """The address of one position's key or value in the cache."""
    width = 2 if s.shape[KV_BF16] else 4
    row = (layer * s.shape[KV_HEADS] + kv_head) * s.words[mb.CAPACITY] + position
    return base + row * s.shape[HEAD_DIM] * width


@part
def append(s: Shared, source: np.ndarray, row: int) -> None:
    """Write one head's key or value into the cache, in the cache's dtype."""
    if s.shape[KV_BF16]:
        store_row_bf16(source.ctypes.data, s.shape[HEAD_DIM], row)
    else:
        store_row_f32(source.ctypes.data, s.shape[HEAD_DIM], row)


@part
def rotate_and_append(s: Shared, own: Own, layer: int, kv_head: int, t: int, position: int) -> None:
    """Key and value of one key head and token into the cache. Twin: `rope`."""
    n, q_size = s.shape[HEAD_DIM], s.shape[HEADS] * s.shape[HEAD_DIM]
    key = q_size + kv_head * n
    value = key + s.shape[KV_HEADS] * n
    rotate_head(s, s.qkv[t, key : key + n], layer, 1, position, own.heads.ctypes.data)
    append(s, own.heads[0], cache_row(s, s.words[mb.KEYS], layer, kv_head, position))
    values = cache_row(s, s.words[mb.VALUES], layer, kv_head, position)
    append(s, s.qkv[t, value : value + n], values)


@part
def attend(s: Shared, own: Own, layer: int, head: int, count: int, position: int) -> None:
    """One query head of `count` tokens from `position` on, each over every position up to its
    own. Twin: `attention`.
    """
    n, bf16 = s.shape[HEAD_DIM], s.shape[KV_BF16] != 0
    width = 2 if bf16 else 4
    kv_head = head // (s.shape[HEADS] // s.shape[KV_HEADS])
    for t in range(count):
        query = s.qkv[t, head * n : (head + 1) * n]
        rotate_head(s, query, layer, 0, position + t, own.heads[t].ctypes.data)
    keys = cache_row(s, s.words[mb.KEYS], layer, kv_head, 0)
    values = cache_row(s, s.words[mb.VALUES], layer, kv_head, 0)
    queries, weights, step = own.heads.ctypes.data, own.weights.ctypes.data, own.weights.shape[1]
    longest = position + count
    dot_rows(bf16, count, keys, width * n, longest, n, queries, weights, step)
    for t in range(count):
        own.inverses[t] = soften(own.weights[t], position + t + 1, longest, n)
    out = s.attended[:, head * n : (head + 1) * n]
    out[:count] = np.float32(0.0)
    out_step = s.attended.shape[1]
    weighted_sum(bf16, count, weights, step, values, longest, n, out.ctypes.data, out_step)
    for t in range(count):
        for i in range(n):
            out[t, i] *= own.inverses[t]


@kernel
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
