"""From a model's matrices to tapes: each block's weights in the order in which it consumes them.

A block of the tape is 512 bytes, what one warp multiplies at a time, in the order of the B
fragments of mma.m16n8k16: 16 bytes a lane, lane = row * 4 + quad. The tape of a block of threads
is, layer by layer, its rows of QKV, of the output projection, its columns' gate and up rows, its
rows of the down projection, some columns of all of them at a time; then its rows of the head.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.models.base import Model
from kernels.tape_plan import (
    BLOCK_COLUMNS,
    DOWN_UNITS,
    UNIT,
    Plan,
    Share,
    ceil_div,
    down_columns,
    padded,
)


def _fill(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """`matrix` with zeros to `rows` and `columns`."""
    if matrix.shape == (rows, columns):
        return matrix
    filled = matrix.new_zeros(rows, columns)
    filled[: matrix.shape[0], : matrix.shape[1]] = matrix
    return filled


def unit_fragments(matrix: torch.Tensor) -> torch.Tensor:
    """[units, blocks, 256]: eight rows by 32 columns a block; matrix [rows, columns]."""
    units, columns = ceil_div(matrix.shape[0], UNIT), padded(matrix.shape[1])
    filled = _fill(matrix, units * UNIT, columns)
    # row; block, k-step, half, quad, pair -> row, quad, k-step, half, pair
    split = filled.view(units, UNIT, columns // BLOCK_COLUMNS, 2, 2, 4, 2)
    return split.permute(0, 2, 1, 5, 3, 4, 6).reshape(units, columns // BLOCK_COLUMNS, 256)


def gate_up_fragments(gate_up: torch.Tensor) -> torch.Tensor:
    """[slices, 2, blocks, 256]: eight gate rows and their up rows; gate_up [2I, H]."""
    return torch.stack([unit_fragments(half) for half in gate_up.chunk(2)], dim=1)


def _layer_parts(model: Model, layer: int | None) -> tuple[torch.Tensor, ...]:
    w = model.weights
    if layer is None:
        return (unit_fragments(w.lm_head),)
    return (
        unit_fragments(w.qkv[layer]),
        unit_fragments(w.o[layer]),
        gate_up_fragments(w.gate_up[layer]),
        unit_fragments(w.down[layer]),
    )


def _pieces(
    parts: tuple[torch.Tensor, ...], share: Share, down_blocks: int
) -> Iterator[torch.Tensor]:
    """One block's part of each stage, in its order on the tape."""
    if len(parts) == 1:
        yield parts[0][share.head_unit : share.head_unit + share.head_units]
        return
    qkv, out, gate_up, down = parts
    yield qkv[share.qkv_unit : share.qkv_unit + share.qkv_units]
    yield out[share.out_unit : share.out_unit + share.out_units]
    yield gate_up[share.slice : share.slice + share.slices]
    end = share.out_unit + share.out_units
    for first in range(share.out_unit, end, DOWN_UNITS):
        for column in range(0, down.shape[1], down_blocks):
            yield down[first : min(first + DOWN_UNITS, end), column : column + down_blocks]


def pack(model: Model, plan: Plan) -> torch.Tensor:
    """bfloat16 [blocks, tape_stride / 2] on the model's device."""
    blocks = len(plan.shares)
    tape = model.weights.embed.new_zeros(blocks, plan.tape_stride // 2)
    down_blocks = down_columns(model.config) // BLOCK_COLUMNS
    ends = [0] * blocks
    for layer in [*range(model.config.layers), None]:
        parts = _layer_parts(model, layer)
        for i, share in enumerate(plan.shares):
            for piece in _pieces(parts, share, down_blocks):
                tape[i, ends[i] : ends[i] + piece.numel()] = piece.reshape(-1)
                ends[i] += piece.numel()
    return tape
