"""What the CPU kernels need around them when they are called one by one."""

from __future__ import annotations

import numpy as np
import torch

from kernels import cpu_matrix, cpu_state
from kernels.cpu_quantise import quantised_bytes
from kernels.cpu_vector import GROUP


def matrix_row(address: int, form: int, rows: int, columns: int, stride: int) -> np.ndarray:
    """One row of the plan."""
    return np.array([address, form, rows, columns, stride, 1], dtype=np.int64)


def room_for(x: torch.Tensor) -> np.ndarray:
    """Where `x` may be quantised, poisoned: nothing may be read before it is written."""
    return np.full(quantised_bytes(x.numel()), 77, dtype=np.uint8)


def multiply(matrix: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    """x [tokens, columns] times the matrix, group by group: [tokens, rows]."""
    tokens, rows = len(x), int(matrix[cpu_state.ROWS])
    room = room_for(x)
    source = cpu_matrix.prepare(x.data_ptr(), matrix, tokens, room.ctypes.data)
    out = torch.full((tokens, rows), float("nan"))
    for group in range(-(-rows // GROUP)):
        tile = np.full((tokens, GROUP), np.nan, dtype=np.float32)
        cpu_matrix.dot_group(source, matrix, group, tokens, tile.ctypes.data)
        first, count = cpu_matrix.rows_of(matrix, group)
        out[:, first : first + count] = torch.from_numpy(tile[:, :count])
    return out
