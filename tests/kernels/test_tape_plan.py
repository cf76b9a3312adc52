"""The tape on a CPU: shares cover every stage once, and the tapes hold the exact weights."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from benchmarks.shapes import SHAPES
from engine.errors import UnpausedError
from engine.models.base import Model, ModelConfig
from engine.weights import as_weights, empty_weights
from kernels.tape_pack import pack
from kernels.tape_plan import (
    DOWN_UNITS,
    SLICE,
    SLOT_BYTES,
    UNIT,
    WARPS,
    Memory,
    Plan,
    down_columns,
    down_parts,
    padded,
    static_bytes,
)

H200_BLOCKS, H200_SHARED_BYTES = 132, 232448
AWKWARD = {
    "nine heads": ModelConfig(
        family="llama", layers=2, hidden=288, intermediate=416, heads=9, kv_heads=3, head_dim=32,
        vocab=381, max_positions=64, rms_eps=1e-5, rope_theta=1e4, tied=True,
    ),
    "no multiple of 32": ModelConfig(
        family="qwen2", layers=1, hidden=40, intermediate=72, heads=5, kv_heads=1, head_dim=16,
        vocab=100, max_positions=64, rms_eps=1e-6, rope_theta=1e4, qkv_bias=True,
    ),
}  # fmt: skip


def model_of(config: ModelConfig) -> Model:
    """Every weight another bfloat16 than its neighbours, none of them 0."""
    tensors = empty_weights(config, "cpu", torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors.values():
        bits = torch.randint(1, 0x7F00, tensor.shape, generator=generator, dtype=torch.int16)
        tensor.copy_(bits.view(torch.bfloat16))
    return Model("weights", config, as_weights(tensors))


def unit_matrix(blocks: torch.Tensor, units: int, columns: int) -> torch.Tensor:
    """[units * 8, columns] from blocks [units * columns / 32, 32 lanes, 8], as mma reads B.

    A lane's first four values are two pairs of the first 16 columns, at 2q and 2q + 8; the other
    four the same of the next 16. Its row is lane / 4.
    """
    found = torch.zeros(units * UNIT, columns, dtype=torch.bfloat16)
    for number, block in enumerate(blocks):
        unit, column = divmod(number, columns // 32)
        for lane in range(32):
            row, quad = unit * UNIT + lane // 4, lane % 4
            for i in range(8):
                at = (i // 4) * 16 + (i // 2 % 2) * 8 + quad * 2 + i % 2
                found[row, column * 32 + at] = block[lane, i]
    return found


class Reader:
    """One block's tape, read stage by stage."""

    def __init__(self, blocks: torch.Tensor) -> None:
        self.blocks, self.at = blocks, 0

    def take(self, units: int, columns: int) -> torch.Tensor:
        """The next stage's rows; it fills its last row of blocks."""
        count = units * columns // 32
        found = unit_matrix(self.blocks[self.at : self.at + count], units, columns)
        self.at += -(-count // WARPS) * WARPS
        return found


def test_the_tapes_hold_the_exact_weights_in_the_order_of_consumption() -> None:
    for config in AWKWARD.values():
        model, plan = model_of(config), Plan.of(config, 5)
        tape = pack(model, plan)
        c, w = config, model.weights
        columns = {"hidden": padded(c.hidden), "q": padded(c.q_size)}
        held = {
            "qkv": torch.zeros(c.layers, c.qkv_size + 8, columns["hidden"]).bfloat16(),
            "o": torch.zeros(c.layers, c.hidden + 8, columns["q"]).bfloat16(),
            "gate": torch.zeros(c.layers, c.intermediate + 16, columns["hidden"]).bfloat16(),
            "up": torch.zeros(c.layers, c.intermediate + 16, columns["hidden"]).bfloat16(),
            "down": torch.zeros(c.layers, c.hidden + 8, padded(c.intermediate)).bfloat16(),
            "head": torch.zeros(c.vocab + 8, columns["hidden"]).bfloat16(),
        }
        for i, share in enumerate(plan.shares):
            reader = Reader(tape[i].view(-1, 32, 8))
            for layer in range(c.layers):
                rows = slice(share.qkv_unit * UNIT, (share.qkv_unit + share.qkv_units) * UNIT)
                held["qkv"][layer, rows] = reader.take(share.qkv_units, columns["hidden"])
                rows = slice(share.out_unit * UNIT, (share.out_unit + share.out_units) * UNIT)
                held["o"][layer, rows] = reader.take(share.out_units, columns["q"])
                both = reader.take(share.slices * 2, columns["hidden"]).view(
                    -1, 2, UNIT, columns["hidden"]
                )
                mine = slice(share.slice * SLICE, (share.slice + share.slices) * SLICE)
                held["gate"][layer, mine] = both[:, 0].reshape(-1, columns["hidden"])
                held["up"][layer, mine] = both[:, 1].reshape(-1, columns["hidden"])
                for first in range(0, share.out_units, DOWN_UNITS):
                    units = min(DOWN_UNITS, share.out_units - first)
                    row = (share.out_unit + first) * UNIT
                    for part, width in enumerate(down_parts(c)):
                        column = part * down_columns(c)
                        held["down"][
                            layer, row : row + units * UNIT, column : column + padded(width)
                        ] = reader.take(units, padded(width))
            end = reader.at * 512
            assert end <= share.layer_slots * SLOT_BYTES < end + SLOT_BYTES
            reader.at = share.layer_slots * SLOT_BYTES // 512
            rows = slice(share.head_unit * UNIT, (share.head_unit + share.head_units) * UNIT)
            held["head"][rows] = reader.take(share.head_units, columns["hidden"])
        assert torch.equal(held["qkv"][:, : c.qkv_size, : c.hidden], w.qkv)
        assert torch.equal(held["o"][:, : c.hidden, : c.q_size], w.o)
        gate, up = w.gate_up.chunk(2, dim=1)
        assert torch.equal(held["gate"][:, : c.intermediate, : c.hidden], gate)
        assert torch.equal(held["up"][:, : c.intermediate, : c.hidden], up)
        assert torch.equal(held["down"][:, : c.hidden, : c.intermediate], w.down)
        assert torch.equal(held["head"][: c.vocab, : c.hidden], w.lm_head)


@pytest.mark.parametrize("name", SHAPES)
def test_shares_cover_every_stage_once_and_evenly(name: str) -> None:
    config = SHAPES[name]
    plan = Plan.of(config, H200_BLOCKS)
    wanted = {
        "qkv": config.qkv_size / UNIT,
        "out": config.hidden / UNIT,
        "slice": config.intermediate / SLICE,
        "head": config.vocab / UNIT,
    }
    for kind, units in wanted.items():
        many = "slices" if kind == "slice" else f"{kind}_units"
        first = "slice" if kind == "slice" else f"{kind}_unit"
        end, counts = 0, []
        for share in plan.shares:
            assert getattr(share, first) == end
            counts.append(getattr(share, many))
            end += counts[-1]
        assert end == units and max(counts) - min(counts) <= 1
    # Everybody has something that everybody else waits for: the condition for reusing exchanges.
    assert all(s.qkv_units or s.out_units or s.slices for s in plan.shares)


@pytest.mark.parametrize("name", SHAPES)
def test_shared_memory_is_laid_out_without_overlap(name: str) -> None:
    memory = Memory.of(Plan.of(SHAPES[name], H200_BLOCKS), 1, H200_SHARED_BYTES)
    offsets = [memory.ring_slots * SLOT_BYTES, *memory.offsets(), memory.size]
    assert memory.ring_slots >= 8 and all(offset % 16 == 0 for offset in offsets)
    apart = [at for at in offsets[1:] if at not in (memory.at_heads, memory.at_queries)]
    assert all(a < b for a, b in itertools.pairwise(apart))
    assert memory.size + static_bytes(1) <= H200_SHARED_BYTES
    assert memory.at_heads == memory.at_activations < memory.at_queries < memory.at_kv


@pytest.mark.parametrize(("name", "width"), [("llama-3.2-1b", 8), ("llama-3.1-8b", 4)])
def test_what_is_not_used_at_a_time_leaves_room_for_the_ring(name: str, width: int) -> None:
    plan = Plan.of(SHAPES[name], H200_BLOCKS)
    memory = Memory.of(plan, width, H200_SHARED_BYTES, True)
    assert memory.ring_slots > 3 and memory.size + static_bytes(width) <= H200_SHARED_BYTES
    assert memory.at_scores == memory.at_sums < memory.at_residual < memory.at_turns


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden": 100}, "hidden size 100 is not a multiple of 8"),
        ({"head_dim": 24}, "heads of 24 are not a multiple of 16"),
        ({"kv_heads": 2}, "9 heads do not divide over 2"),
        ({"heads": 140, "kv_heads": 140}, "140 key heads are more than 132"),
        ({"intermediate": 417}, "intermediate size 417 is not a multiple of 4"),
    ],
)
def test_shapes_that_the_kernel_does_not_do_are_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    config = dataclasses.replace(AWKWARD["nine heads"], **changes)
    with pytest.raises(UnpausedError, match=message):
        Plan.of(config, H200_BLOCKS)


def test_too_little_shared_memory_is_told_with_the_numbers() -> None:
    plan = Plan.of(SHAPES["llama-3.1-8b"], H200_BLOCKS)
    with pytest.raises(UnpausedError, match="bytes of shared memory for passes of 8 tokens"):
        Memory.of(plan, 8, H200_SHARED_BYTES)
