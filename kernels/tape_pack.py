"""From a model's matrices to tapes: each block's weights in the order in which it consumes them.

A block of the tape is 512 bytes, what one warp multiplies at a time, in the order of the B
fragments of mma.m16n8k16: 16 bytes a lane, lane = row * 4 + quad. The tape of a block of threads
is, layer by layer, its rows of QKV, of the output projection, its columns' gate and up rows, its
rows of the down projection, some columns of all of them at a time; then its rows of the head. After
all tapes follow, layer by layer, the units that have no owner.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.models.base import Model
from kernels.tape_plan import (
    BLOCK_COLUMNS,
    DOWN_UNITS,
    GATE_COLUMNS,
    SLOT_BYTES,
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
    """[units, blocks, 256]: four gate rows and their up rows a unit; gate_up [2I, H]."""
    halves = [half.reshape(-1, GATE_COLUMNS, half.shape[1]) for half in gate_up.chunk(2)]
    return unit_fragments(torch.cat(halves, dim=1).flatten(0, 1))


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
    yield gate_up[share.gate_unit : share.gate_unit + share.gate_units]
    end = share.out_unit + share.out_units
    for first in range(share.out_unit, end, DOWN_UNITS):
        for column in range(0, down.shape[1], down_blocks):
            yield down[first : min(first + DOWN_UNITS, end), column : column + down_blocks]


def pack(model: Model, plan: Plan) -> torch.Tensor:
    """bfloat16 on the model's device: [blocks, tape_stride / 2], then the pools of each layer."""
    blocks, layers = len(plan.shares), model.config.layers
    own, pooled = blocks * plan.tape_stride // 2, plan.pool_slots * SLOT_BYTES // 2
    packed = model.weights.embed.new_zeros(own + layers * pooled)
    tape, pools = packed[:own].view(blocks, -1), packed[own:].view(layers, pooled)
    down_blocks = down_columns(model.config) // BLOCK_COLUMNS
    ends = [0] * blocks
    for layer in [*range(layers), None]:
        parts = _layer_parts(model, layer)
        for i, share in enumerate(plan.shares):
            for piece in _pieces(parts, share, down_blocks):
                tape[i, ends[i] : ends[i] + piece.numel()] = piece.reshape(-1)
                ends[i] += piece.numel()
        if layer is not None and pooled:
            qkv, gate = parts[0], parts[2]
            unowned = [qkv[len(qkv) - plan.qkv_pool :], gate[len(gate) - plan.gate_pool :]]
            pools[layer] = torch.cat([part.reshape(-1) for part in unowned])
    return packed
