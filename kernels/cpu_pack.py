"""Repacking GGUF's blocks so that they stream: same bits, same bytes, another order.

GGUF keeps each row's blocks of 32 values: scale `d` (float16), for Q4_1 also minimum `m`, then the
quants. Here the blocks of 16 neighbouring rows lie together as a *group*:

    quants    [block, step, row, 4]     uint8 for Q4 (a byte holds columns c and c + 16), else int8
    scales    [block, row]              float16
    minimums  [block, row]              float16, Q4_1 only

and groups follow one another, padded to whole cache lines. Missing rows of the last group are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

GROUP, QUANT, _LINE_BYTES = 16, 32, 64


@dataclass(frozen=True)
class BlockFormat:
    """How GGUF lays out a block, in bytes."""

    header_bytes: int  # the scale, or scale and minimum
    quant_bytes: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of 32 values."""
        return self.header_bytes + self.quant_bytes

    def group_bytes(self, columns: int) -> int:
        """Bytes of one group of 16 rows, padding included."""
        whole = GROUP * self.block_bytes * (columns // QUANT)
        return -(-whole // _LINE_BYTES) * _LINE_BYTES


BLOCK_FORMATS = {
    "Q4_0": BlockFormat(2, 16),
    "Q4_1": BlockFormat(4, 16),
    "Q8_0": BlockFormat(2, 32),
}


def aligned_empty(size_bytes: int) -> np.ndarray:
    """uint8 [size_bytes] that begins on a cache line."""
    raw = np.empty(size_bytes + _LINE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _LINE_BYTES
    return raw[start : start + size_bytes]


def pack(raw: np.ndarray, kind: str, columns: int) -> np.ndarray:
    """`raw`: uint8 [rows, bytes of a row] as in the file. Returns uint8 [groups, group_bytes]."""
    form = BLOCK_FORMATS[kind]
    rows, blocks = len(raw), columns // QUANT
    groups = -(-rows // GROUP)
    if rows % GROUP:
        raw = np.concatenate([raw, np.zeros((-rows % GROUP, raw.shape[1]), dtype=np.uint8)])
    source = raw.reshape(groups, GROUP, blocks, form.block_bytes)
    size = form.group_bytes(columns)
    packed = aligned_empty(groups * size).reshape(groups, size)

    quants_end = blocks * GROUP * form.quant_bytes
    quants = packed[:, :quants_end].reshape(groups, blocks, form.quant_bytes // 4, GROUP, 4)
    taken = source[..., form.header_bytes :].reshape(groups, GROUP, blocks, -1, 4)
    quants[:] = taken.transpose(0, 2, 3, 1, 4)
    for part in range(form.header_bytes // 2):
        start = quants_end + part * blocks * GROUP * 2
        header = packed[:, start : start + blocks * GROUP * 2].reshape(groups, blocks, GROUP, 2)
        header[:] = source[..., 2 * part : 2 * part + 2].transpose(0, 2, 1, 3)
    return packed
