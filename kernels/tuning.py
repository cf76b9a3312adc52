"""Tile shapes of the kernels: measured ones from tuning.json, safe ones for any other GPU."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.models.base import ModelConfig

_TABLE = Path(__file__).with_name("tuning.json")
EARLY, LATE = 1, 2  # at once, or when the kernel before has ended: fewer programs in waiting
MATVECS = ("qkv", "o", "gate_up", "down", "head")


@dataclass(frozen=True)
class Tile:
    """Rows a program owns, columns it takes at a time (a power of two), its warps, and when the
    next kernel may start: `EARLY` or `LATE`."""

    rows: int
    block_k: int
    warps: int
    trigger: int = 1


@dataclass(frozen=True)
class Tuning:
    """Every choice of one model on one GPU."""

    qkv: Tile
    o: Tile
    gate_up: Tile
    down: Tile
    head: Tile
    splits: int  # parts a context is divided into for attention
    block_n: int  # positions an attention program takes at a time
    attention_warps: int
    ahead: int  # gate/up weights an attention program requests, in each half; 0 for none
    attention_trigger: int


def sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(rows, columns) of each matrix-vector product."""
    c = config
    return {
        "qkv": (c.qkv_size, c.hidden),
        "o": (c.hidden, c.q_size),
        "gate_up": (2 * c.intermediate, c.hidden),
        "down": (c.hidden, c.intermediate),
        "head": (c.vocab, c.hidden),
    }


def tuning_for(config: ModelConfig, gpu: str) -> Tuning:
    """The table's entries for `gpu` where it has them, `default_tile` and rules elsewhere."""
    measured = _table().get(gpu, {})
    choices: dict[str, Any] = {}
    for kind, (rows, columns) in sizes(config).items():
        entry = measured.get(f"{kind} {rows}x{columns}")
        choices[kind] = Tile(*entry) if entry else default_tile(kind, rows, columns)
    attention = f"attention {config.heads}/{config.kv_heads}x{config.head_dim}"
    choices |= _attention(measured.get(attention) or default_attention(config))
    return Tuning(**choices)


def default_tile(kind: str, rows: int, columns: int) -> Tile:
    """A tile that any GPU takes: at most 64 weights a thread held at once."""
    block_k = min(1024, power_of_two(columns))
    per_program = 4 if rows < 4096 and kind != "gate_up" else 8
    return Tile(per_program, block_k, 4)


@dataclass(frozen=True)
class ColumnTile:
    """As `Tile`, of a product for several tokens: `rows` a multiple of 8, and each of `warps`
    takes a stretch of `block_k`."""

    rows: int
    block_k: int
    warps: int


def column_tile(rows: int, columns: int, roomy: bool = False) -> ColumnTile:
    """A tile for a matrix [rows, columns] and a few tokens; chosen by rule, not yet measured.

    Every program reads the activations whole, so where there are many programs each takes more
    rows; where there are few each has more weights under way. `roomy`: a program may have 160 KiB
    of shared memory, as on data-centre GPUs.
    """
    if rows >= 8192:
        tile = ColumnTile(32, 256, 4)
    elif columns >= 1024:
        tile = ColumnTile(16, 1024, 8) if roomy else ColumnTile(16, 512, 4)
    else:
        tile = ColumnTile(16, 256, 4)
    least = 16 * tile.warps  # the shortest stretch that tensor cores take
    return replace(tile, block_k=max(least, min(tile.block_k, power_of_two(columns))))


def _attention(entry: Sequence[int]) -> dict[str, int]:
    names = ("splits", "block_n", "attention_warps", "ahead", "attention_trigger")
    return dict(zip(names, entry, strict=True))


def default_attention(config: ModelConfig) -> tuple[int, int, int, int, int]:
    """As in the table: about a program for each of 128 SMs, nothing requested ahead."""
    splits = max(4, min(64, power_of_two(128 // config.kv_heads + 1) // 2))
    group = power_of_two(config.heads // config.kv_heads)
    # 32 float32 accumulators a thread.
    positions = 32 * 32 * 8 // (group * power_of_two(config.head_dim))
    return splits, max(16, min(128, positions)), 8, 0, EARLY


def power_of_two(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


@functools.cache
def _table() -> dict[str, dict[str, list[int]]]:
    content: dict[str, dict[str, list[int]]] = json.loads(_TABLE.read_text("utf-8"))
    return content
