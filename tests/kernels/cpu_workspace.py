"""What the CPU kernels need around them when they are called one by one."""

from __future__ import annotations

import numpy as np
import torch

from kernels import cpu_layers, cpu_state
from kernels.cpu_vector import GROUP


def own_of(widest: int, positions: int = 64, head_dim: int = 64) -> cpu_state.Own:
    """A thread's scratch, poisoned: nothing may be read before it is written."""
    size = cpu_state.CHUNK * widest

    def floats(*shape: int) -> np.ndarray:
        return np.full(shape, np.nan, dtype=np.float32)

    return cpu_state.Own(
        normed=floats(size),
        quants=np.full(2 * size, 77, dtype=np.int8),
        scales=floats(-(-size // 32)),
        totals=np.full(2 * -(-size // 32), 12345, dtype=np.int32),
        tile=floats(2, cpu_state.CHUNK, GROUP),
        heads=floats(cpu_state.CHUNK, head_dim),
        weights=floats(cpu_state.CHUNK, positions + GROUP),
        inverses=floats(cpu_state.CHUNK),
        random=np.zeros(4, dtype=np.uint64),
        byte=np.zeros(1, dtype=np.uint8),
    )


def matrix_row(address: int, form: int, rows: int, columns: int, stride: int) -> np.ndarray:
    """One row of the plan."""
    return np.array([address, form, rows, columns, stride, 1], dtype=np.int64)


def multiply(matrix: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    """x [tokens, columns] (`WIDTHS` tokens) times the matrix, group by group: [tokens, rows]."""
    tokens, rows = len(x), int(matrix[cpu_state.ROWS])
    own = own_of(x.shape[1])
    source = cpu_layers.prepare(own, x.data_ptr(), matrix, tokens)
    out = torch.full((tokens, rows), float("nan"))
    for group in range(-(-rows // GROUP)):
        tile = np.full((cpu_state.CHUNK, GROUP), np.nan, dtype=np.float32)
        cpu_layers.dot_group(own, source, matrix, group, tokens, tile)
        first, count = cpu_layers.rows_of(matrix, group)
        out[:, first : first + count] = torch.from_numpy(tile[:tokens, :count])
    return out
