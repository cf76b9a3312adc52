"""The stages of one layer, each shared out in items among the threads; see kernels/cpu.py.

A stage hands out items until there are none (kernels/cpu_exchange.py), and each thread prepares
the stage's input for itself with its first item. Names, order and PyTorch twins: kernels/stages.py
and kernels/reference.py. `sequence` numbers the stages of a reply; each returns the next.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu_elements import silu_multiply
from kernels.cpu_exchange import complete, next_item
from kernels.cpu_host import part
from kernels.cpu_layers import attend, normalise, rotate_and_append
from kernels.cpu_matrix import dot_group, prepare, rows_of, share_of
from kernels.cpu_state import (
    HEADS,
    ITEMS,
    KV_HEADS,
    LAYER_MATRICES,
    M_DOWN,
    M_GATE,
    M_OUTPUT,
    M_QKV,
    M_UP,
    Own,
    Shared,
)
from kernels.cpu_vector import GROUP
from kernels.stages import ATTENTION, DOWN, GATE_UP, OUTPUT, QKV, ROPE


@part
def qkv_stage(s: Shared, own: Own, sequence: int, layer: int, count: int) -> int:
    """RMSNorm, then query, key and value rows."""
    matrix = s.plan[layer * LAYER_MATRICES + M_QKV]
    ready, source = False, 0
    while True:
        item = next_item(s.words, sequence, matrix[ITEMS], QKV, layer)
        if item < 0:
            return sequence + 1
        if not ready:
            normalise(s.x, s.norms[2 * layer], s.eps[0], count, own.normed)
            source = prepare(own.normed.ctypes.data, matrix, count, own.quantised.ctypes.data)
            ready = True
        first, last = share_of(matrix, item)
        for group in range(first, last):
            dot_group(source, matrix, group, count, own.tile.ctypes.data)
            start, rows = rows_of(matrix, group)
            for t in range(count):
                for r in range(rows):
                    s.qkv[t, start + r] = own.tile[0, t, r]
            if s.qkv_bias.shape[0] > 0:
                for t in range(count):
                    for r in range(rows):
                        s.qkv[t, start + r] += s.qkv_bias[layer, start + r]
        complete(s.words, sequence, matrix[ITEMS])


@part
def rope_stage(s: Shared, own: Own, sequence: int, layer: int, count: int, position: int) -> int:
    """Rotate the new keys and append them and the values to the cache, one item a key head."""
    items = s.shape[KV_HEADS]
    while True:
        item = next_item(s.words, sequence, items, ROPE, layer)
        if item < 0:
            return sequence + 1
        for t in range(count):
            rotate_and_append(s, own, layer, item, t, position + t)
        complete(s.words, sequence, items)


@part
def attention_stage(
    s: Shared, own: Own, sequence: int, layer: int, count: int, position: int
) -> int:
    """Softmax attention, one item a query head."""
    items = s.shape[HEADS]
    while True:
        item = next_item(s.words, sequence, items, ATTENTION, layer)
        if item < 0:
            return sequence + 1
        attend(s, own, layer, item, count, position)
        complete(s.words, sequence, items)


@part
def output_stage(s: Shared, own: Own, sequence: int, layer: int, count: int) -> int:
    """The attention's output projection, added to the residual."""
    matrix = s.plan[layer * LAYER_MATRICES + M_OUTPUT]
    return _residual_stage(s, own, sequence, matrix, s.attended, count, OUTPUT, layer)


@part
def gate_up_stage(s: Shared, own: Own, sequence: int, layer: int, count: int) -> int:
    """RMSNorm, then gate and up rows, then silu(gate) * up."""
    gate = s.plan[layer * LAYER_MATRICES + M_GATE]
    up = s.plan[layer * LAYER_MATRICES + M_UP]
    ready, source = False, 0
    while True:
        item = next_item(s.words, sequence, gate[ITEMS], GATE_UP, layer)
        if item < 0:
            return sequence + 1
        if not ready:
            normalise(s.x, s.norms[2 * layer + 1], s.eps[0], count, own.normed)
            source = prepare(own.normed.ctypes.data, gate, count, own.quantised.ctypes.data)
            ready = True
        first, last = share_of(gate, item)
        gates, ups = own.tile[0].ctypes.data, own.tile[1].ctypes.data
        for group in range(first, last):
            dot_group(source, gate, group, count, gates)
            dot_group(source, up, group, count, ups)
            silu_multiply(gates, ups, gates, count * GROUP)
            start, rows = rows_of(gate, group)
            for t in range(count):
                for r in range(rows):
                    s.activated[t, start + r] = own.tile[0, t, r]
        complete(s.words, sequence, gate[ITEMS])


@part
def down_stage(s: Shared, own: Own, sequence: int, layer: int, count: int) -> int:
    """The MLP's down projection, added to the residual."""
    matrix = s.plan[layer * LAYER_MATRICES + M_DOWN]
    return _residual_stage(s, own, sequence, matrix, s.activated, count, DOWN, layer)


@part
def _residual_stage(
    s: Shared, own: Own, sequence: int, matrix: np.ndarray, source: np.ndarray, count: int,
    stage: int, layer: int,
) -> int:  # fmt: skip
    ready, address = False, 0
    while True:
        item = next_item(s.words, sequence, matrix[ITEMS], stage, layer)
        if item < 0:
            return sequence + 1
        if not ready:
            address = prepare(source.ctypes.data, matrix, count, own.quantised.ctypes.data)
            ready = True
        first, last = share_of(matrix, item)
        for group in range(first, last):
            dot_group(address, matrix, group, count, own.tile.ctypes.data)
            start, rows = rows_of(matrix, group)
            for t in range(count):
                for r in range(rows):
                    s.x[t, start + r] += own.tile[0, t, r]
        complete(s.words, sequence, matrix[ITEMS])
