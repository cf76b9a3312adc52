"""From a model's matrices to tapes: each block's weights in the order in which it consumes them.

A block of the tape is 512 bytes, what one warp multiplies at a time, in the order of the B
fragments of mma.m16n8k16: 16 bytes a lane, lane = row * 4 + quad. The tape of a block of threads
is, layer by layer, its rows of QKV, of the output projection, its columns' gate and up rows, its
columns of the down projection; then, in a slot of their own, its rows of the head.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.models.base import Model, ModelConfig
from kernels.tape_plan import (
    BLOCK_COLUMNS,
    ROW_BYTES,
    SLICE,
    SLOT_BYTES,
    UNIT,
    WARPS,
    Plan,
    Share,
    ceil_div,
    padded,
    super_groups,
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
    """[slices, 4, blocks, 256]: eight gate rows, their up rows, and the next eight; [2I, H]."""
    slices = ceil_div(gate_up.shape[0] // 2, SLICE)
    parts = []
    for half in gate_up.chunk(2):
        units = unit_fragments(_fill(half, slices * SLICE, half.shape[1]))
        parts.append(units.view(slices, 2, *units.shape[1:]))
    return torch.stack(parts, dim=2).flatten(1, 2)


def down_fragments(down: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """[slices, super groups, WARPS, 256]: 16 rows by 16 columns a block; down [H, I]."""
    groups, slices = super_groups(config), ceil_div(config.intermediate, SLICE)
    filled = _fill(down, groups * WARPS * 16, slices * SLICE)
    # super group, warp, upper or lower, row; slice, half, quad, pair
    split = filled.view(groups, WARPS, 2, UNIT, slices, 2, 4, 2)
    return split.permute(4, 0, 1, 3, 6, 2, 5, 7).reshape(slices, groups, WARPS, 256)


def _layer_parts(model: Model, layer: int | None) -> tuple[torch.Tensor, ...]:
    w = model.weights
    if layer is None:
        return (unit_fragments(w.lm_head),)
    return (
        unit_fragments(w.qkv[layer]),
        unit_fragments(w.o[layer]),
        gate_up_fragments(w.gate_up[layer]),
        down_fragments(w.down[layer], model.config),
    )


def _pieces(parts: tuple[torch.Tensor, ...], share: Share) -> Iterator[torch.Tensor]:
    """One block's part of each stage, in its order on the tape."""
    if len(parts) == 1:
        yield parts[0][share.head_unit : share.head_unit + share.head_units]
        return
    qkv, out, gate_up, down = parts
    mine = slice(share.slice, share.slice + share.slices)
    yield qkv[share.qkv_unit : share.qkv_unit + share.qkv_units]
    yield out[share.out_unit : share.out_unit + share.out_units]
    yield gate_up[mine]
    yield down[mine].transpose(0, 1)  # a group of rows has all its columns at once


def pack(model: Model, plan: Plan) -> torch.Tensor:
    """bfloat16 [blocks, tape_stride / 2] on the model's device."""
    blocks = len(plan.shares)
    tape = model.weights.embed.new_zeros(blocks, plan.tape_stride // 2)
    rows = ROW_BYTES // 2
    ends = [0] * blocks
    for layer in [*range(model.config.layers), None]:
        parts = _layer_parts(model, layer)
        for i, share in enumerate(plan.shares):
            at = ends[i] if layer is not None else share.layer_slots * SLOT_BYTES // 2
            for piece in _pieces(parts, share):
                flat = piece.reshape(-1)
                tape[i, at : at + flat.numel()] = flat
                at += ceil_div(flat.numel(), rows) * rows
            ends[i] = at
    return tape
