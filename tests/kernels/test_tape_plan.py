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
from kernels.tape import Choices
from kernels.tape_pack import pack
from kernels.tape_plan import (
    DOWN_UNITS,
    GATE_COLUMNS,
    MAX_SLOTS,
    SLOT_BYTES,
    UNIT,
    WARPS,
    Memory,
    Plan,
    Share,
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


POOLED = dataclasses.replace(AWKWARD["nine heads"], layers=2, intermediate=1024, vocab=64)


class Held:
    """What tapes and pools give back of each matrix, padded; fill it and compare it."""

    def __init__(self, config: ModelConfig) -> None:
        c = self.config = config
        self.hidden, q = padded(c.hidden), padded(c.q_size)
        rows = {
            "qkv": (c.qkv_size + 8, self.hidden), "o": (c.hidden + 8, q),
            "gate": (c.intermediate + 16, self.hidden), "up": (c.intermediate + 16, self.hidden),
            "down": (c.hidden + 8, padded(c.intermediate)),
        }  # fmt: skip
        self.of = {name: torch.zeros(c.layers, *shape).bfloat16() for name, shape in rows.items()}
        self.head = torch.zeros(c.vocab + 8, self.hidden).bfloat16()
        self.q = q

    def qkv(self, reader: Reader, layer: int, unit: int, units: int) -> None:
        self.of["qkv"][layer, unit * UNIT : (unit + units) * UNIT] = reader.take(units, self.hidden)

    def gate_up(self, reader: Reader, layer: int, unit: int, units: int) -> None:
        both = reader.take(units, self.hidden).view(-1, 2, GATE_COLUMNS, self.hidden)
        mine = slice(unit * GATE_COLUMNS, (unit + units) * GATE_COLUMNS)
        self.of["gate"][layer, mine] = both[:, 0].reshape(-1, self.hidden)
        self.of["up"][layer, mine] = both[:, 1].reshape(-1, self.hidden)

    def rest(self, reader: Reader, layer: int, share: Share) -> None:
        """The output projection, gate and up, and down."""
        rows = slice(share.out_unit * UNIT, (share.out_unit + share.out_units) * UNIT)
        self.of["o"][layer, rows] = reader.take(share.out_units, self.q)
        self.gate_up(reader, layer, share.gate_unit, share.gate_units)
        for first in range(0, share.out_units, DOWN_UNITS):
            units = min(DOWN_UNITS, share.out_units - first)
            row = (share.out_unit + first) * UNIT
            for part, width in enumerate(down_parts(self.config)):
                column = part * down_columns(self.config)
                self.of["down"][
                    layer, row : row + units * UNIT, column : column + padded(width)
                ] = reader.take(units, padded(width))

    def check(self, model: Model) -> None:
        c, w, of = self.config, model.weights, self.of
        gate, up = w.gate_up.chunk(2, dim=1)
        assert torch.equal(of["qkv"][:, : c.qkv_size, : c.hidden], w.qkv)
        assert torch.equal(of["o"][:, : c.hidden, : c.q_size], w.o)
        assert torch.equal(of["gate"][:, : c.intermediate, : c.hidden], gate)
        assert torch.equal(of["up"][:, : c.intermediate, : c.hidden], up)
        assert torch.equal(of["down"][:, : c.hidden, : c.intermediate], w.down)
        assert torch.equal(self.head[: c.vocab, : c.hidden], w.lm_head)


@pytest.mark.parametrize("config", [*AWKWARD.values(), POOLED])
def test_the_tapes_hold_the_exact_weights_in_the_order_of_consumption(config: ModelConfig) -> None:
    model, plan = model_of(config), Plan.of(config, 5)
    packed, held = pack(model, plan), Held(config)
    end_of_tapes = len(plan.shares) * plan.tape_stride // 2
    tapes = packed[:end_of_tapes].view(len(plan.shares), -1)
    for i, share in enumerate(plan.shares):
        reader = Reader(tapes[i].view(-1, 32, 8))
        for layer in range(config.layers):
            held.qkv(reader, layer, share.qkv_unit, share.qkv_units)
            held.rest(reader, layer, share)
        end = reader.at * 512
        assert end <= share.layer_slots * SLOT_BYTES < end + SLOT_BYTES
        reader.at = share.layer_slots * SLOT_BYTES // 512
        rows = slice(share.head_unit * UNIT, (share.head_unit + share.head_units) * UNIT)
        held.head[rows] = reader.take(share.head_units, held.hidden)
    reader = Reader(packed[end_of_tapes:].view(-1, 32, 8))
    units = -(-config.qkv_size // UNIT), config.intermediate // GATE_COLUMNS
    for layer in range(config.layers):
        held.qkv(reader, layer, units[0] - plan.qkv_pool, plan.qkv_pool)
        held.gate_up(reader, layer, units[1] - plan.gate_pool, plan.gate_pool)
    assert reader.at * 512 == config.layers * plan.pool_slots * SLOT_BYTES
    assert (plan.gate_pool > 0) == (config is POOLED)
    held.check(model)


@pytest.mark.parametrize("name", SHAPES)
def test_shares_cover_every_stage_once_and_evenly(name: str) -> None:
    config = SHAPES[name]
    plan = Plan.of(config, H200_BLOCKS)
    wanted = {
        "qkv": config.qkv_size / UNIT - plan.qkv_pool,
        "out": config.hidden / UNIT,
        "gate": config.intermediate / GATE_COLUMNS - plan.gate_pool,
        "head": config.vocab / UNIT,
    }
    for kind, units in wanted.items():
        end, counts = 0, []
        for share in plan.shares:
            assert getattr(share, f"{kind}_unit") == end
            counts.append(getattr(share, f"{kind}_units"))
            end += counts[-1]
        assert end == units and max(counts) - min(counts) <= 1
    # Everybody has something that everybody else waits for: the condition for reusing exchanges.
    assert all(s.qkv_units or s.out_units or s.gate_units for s in plan.shares)


@pytest.mark.parametrize("name", SHAPES)
def test_a_pool_comes_after_enough_slots_of_ones_own_and_before_some(name: str) -> None:
    """What the tickets rest on: see `kernels/tape_feed.cuh`."""
    config = SHAPES[name]
    plan = Plan.of(config, H200_BLOCKS)
    unit_slots = padded(config.hidden) * 16 // SLOT_BYTES
    assert bool(plan.gate_pool) == (name in ("llama-3.2-1b", "llama-3.1-8b"))
    for share in plan.shares:
        down = share.layer_slots // config.layers - share.qkv_slots - share.middle_slots
        assert down > 0 or not plan.gate_pool
        assert share.gate_units * unit_slots > MAX_SLOTS + 2 or not plan.gate_pool
        assert share.qkv_slots > MAX_SLOTS + 2 or not plan.qkv_pool
        assert share.qkv_slots == share.qkv_units * unit_slots


@pytest.mark.parametrize("name", SHAPES)
def test_shared_memory_is_laid_out_without_overlap(name: str) -> None:
    memory = Memory.of(Plan.of(SHAPES[name], H200_BLOCKS), 1, H200_SHARED_BYTES)
    offsets = [memory.ring_slots * SLOT_BYTES, *memory.offsets(), memory.size]
    assert memory.ring_slots >= 8 and all(offset % 16 == 0 for offset in offsets)
    apart = offsets[1:]
    del apart[apart.index(memory.at_queries, 1)]  # they lie where the activations do
    assert all(a < b for a, b in itertools.pairwise(apart))
    assert memory.size + static_bytes(1) <= H200_SHARED_BYTES
    assert memory.at_queries == memory.at_activations


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


@pytest.mark.parametrize("name", ["in_flight", "quiet", "split_tiles"])
def test_a_choice_that_copies_nothing_is_refused(name: str) -> None:
    with pytest.raises(UnpausedError, match="nothing would ever be copied"):
        Choices(**{name: 0})
