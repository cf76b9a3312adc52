"""Who does what in the tape kernel, as data: each block's share of every stage, and its memory.

Units are the least that a block can have of a stage: eight rows of a matrix, of gate and up four
rows each; eight words of attention's result. Rows are split so that every block gets the same bytes
as nearly as units allow; who gets one more of one kind gets one less of another. Eight rows are
filled up to whole slots of the ring: no stage begins in the middle of one.

Multiprocessors do not stream at the same speed: some are a twentieth faster than most, and each is
now and then slower. So of the stages whose results nobody keeps, QKV and gate/up, an eighth lies in
a pool, and its units go to whoever comes first.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields, replace

from engine.errors import UnpausedError
from engine.models.base import ModelConfig

WARPS = 8  # that compute
UNIT = 8  # weight rows
GATE_COLUMNS = 4  # of the MLP in a unit of gate and up
DOWN_UNITS = 8  # of the down projection that go through its columns together
BLOCK_COLUMNS = 32
BLOCK_BYTES = 512
ROW_BYTES = BLOCK_BYTES * WARPS
SLOT_BYTES = 4 * ROW_BYTES
SLOT_COLUMNS = SLOT_BYTES // BLOCK_BYTES * BLOCK_COLUMNS
MAX_WIDTH = 8  # tokens of a pass
MAX_SLOTS = 16
MAX_SPLITS = 64
TILE = 16  # positions that one warp attends to at a time
_MIN_SLOTS = 3
# Of a stage's own slots, before a pool: more than the ring and what is taken ahead of it. Who then
# asks for a unit has seen this pass's exchange, so that everybody is through with the pass before.
_SLOTS_BEFORE_POOL = MAX_SLOTS + 3


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def padded(columns: int) -> int:
    """Columns of a matrix on the tape: eight rows of them are whole slots."""
    return ceil_div(columns, SLOT_COLUMNS) * SLOT_COLUMNS


@dataclass(frozen=True)
class Share:
    """One block's share; the fields, in this order, are the kernel's `Share`. Counts in units.

    `layer_slots`: of all layers; of one, `qkv_slots` come first and then, after the pool of QKV,
    `middle_slots` of the output projection, gate and up; the rest, after the pool of gate and up,
    is the down projection's.
    """

    qkv_unit: int
    qkv_units: int
    out_unit: int
    out_units: int
    gate_unit: int
    gate_units: int
    head_unit: int
    head_units: int
    word: int
    words: int
    layer_slots: int = 0
    head_slots: int = 0
    qkv_slots: int = 0
    middle_slots: int = 0

    def row_of(self) -> list[int]:
        """As int32s, padded to 16."""
        values = list(astuple(self))
        return values + [0] * (16 - len(values))


def _spread(units: int, blocks: int, extras_last: bool) -> list[tuple[int, int]]:
    """(first, count) for every block; the odd ones go to the first blocks or to the last."""
    each, odd = divmod(units, blocks)
    counts = [each] * blocks
    for i in range(odd):
        counts[blocks - 1 - i if extras_last else i] += 1
    firsts = [sum(counts[:i]) for i in range(blocks)]
    return list(zip(firsts, counts, strict=True))


def _slots(units: int, columns: int) -> int:
    return units * (padded(columns) // SLOT_COLUMNS)


def _pooled(units: int, columns: int, blocks: int) -> int:
    """Units of a stage that have no owner: an eighth, if there are enough for that to pay."""
    own = units * 7 // (8 * blocks)
    return units - own * blocks if _slots(own, columns) >= _SLOTS_BEFORE_POOL else 0


@dataclass(frozen=True)
class Plan:
    """The shares of `blocks` blocks of a model; the last `qkv_pool` and `gate_pool` units of each
    layer's QKV and gate/up are in nobody's share."""

    config: ModelConfig
    shares: tuple[Share, ...]
    qkv_pool: int = 0
    gate_pool: int = 0

    @classmethod
    def of(cls, config: ModelConfig, blocks: int) -> Plan:
        """The plan, or `UnpausedError` for a shape that the kernel does not do."""
        _check(config, blocks)
        c = config
        qkv_units, gate_units = ceil_div(c.qkv_size, UNIT), c.intermediate // GATE_COLUMNS
        pools = [0, 0]
        if c.hidden // UNIT >= blocks:  # what says that a pool is empty is the stage after it
            pools = [_pooled(units, c.hidden, blocks) for units in (qkv_units, gate_units)]
        qkv = _spread(qkv_units - pools[0], blocks, True)
        out = _spread(ceil_div(c.hidden, UNIT), blocks, True)
        gate = _spread(gate_units - pools[1], blocks, False)
        head = _spread(ceil_div(c.vocab, UNIT), blocks, False)
        words = _spread(ceil_div(c.q_size, UNIT), blocks, True)
        shares = []
        for i in range(blocks):
            share = Share(
                qkv_unit=qkv[i][0], qkv_units=qkv[i][1], out_unit=out[i][0], out_units=out[i][1],
                gate_unit=gate[i][0], gate_units=gate[i][1],
                head_unit=head[i][0], head_units=head[i][1],
                word=words[i][0] * UNIT, words=words[i][1] * UNIT,
            )  # fmt: skip
            shares.append(cls._with_slots(c, share))
        return cls(config, tuple(shares), *pools)

    @staticmethod
    def _with_slots(c: ModelConfig, share: Share) -> Share:
        qkv, out = _slots(share.qkv_units, c.hidden), _slots(share.out_units, c.q_size)
        gate = _slots(share.gate_units, c.hidden)
        down = sum(_slots(share.out_units, columns) for columns in down_parts(c))
        return replace(
            share,
            layer_slots=c.layers * (qkv + out + gate + down),
            head_slots=_slots(share.head_units, c.hidden),
            qkv_slots=qkv,
            middle_slots=out + gate,
        )

    @property
    def tape_stride(self) -> int:
        """Bytes from one block's tape to the next."""
        return max(s.layer_slots + s.head_slots for s in self.shares) * SLOT_BYTES

    @property
    def pool_slots(self) -> int:
        """Slots of a layer's pools: those of QKV first."""
        return _slots(self.qkv_pool + self.gate_pool, self.config.hidden)

    @property
    def splits(self) -> int:
        """Parts that a key head's history can be divided into."""
        most = self.config.head_dim // 4 if folds(self.config, 1) else MAX_SPLITS
        return min(len(self.shares) // self.config.kv_heads, most)


def folds(config: ModelConfig, width: int) -> bool:
    """Whether attention is put together by those who need it, of passes of a single token.

    Every block then reads all splits' parts: with nine heads of 64 that costs less than the
    exchange it saves (SmolLM2 419 to 391 us a token on an H200), with 32 more (Llama-3.2-1B 626 to
    634 us).
    """
    return width == 1 and config.head_dim in (64, 128) and config.q_size <= 1024


def kv_slots(config: ModelConfig, width: int) -> int:
    """Tiles of keys and values that a block copies ahead, for as many of its warps.

    More of them make fewer parts of the same history, and leave the ring less room.
    """
    return 8 if folds(config, width) else 4


def down_columns(config: ModelConfig) -> int:
    """Columns of the down projection whose activations lie in shared memory at a time."""
    c, most = config, 3072  # 12 KB
    all_columns = padded(c.intermediate)
    return all_columns if all_columns <= most else max(padded(c.hidden), padded(c.q_size))


def down_parts(config: ModelConfig) -> list[int]:
    """The down projection's columns, part by part."""
    each = down_columns(config)
    return [min(each, config.intermediate - at) for at in range(0, config.intermediate, each)]


def _check(config: ModelConfig, blocks: int) -> None:
    c = config
    rules = [
        (c.hidden % UNIT == 0, f"hidden size {c.hidden} is not a multiple of {UNIT}"),
        (c.head_dim % 16 == 0 and c.head_dim <= 128,
         f"heads of {c.head_dim} are not a multiple of 16 up to 128"),
        (c.intermediate % 4 == 0, f"intermediate size {c.intermediate} is not a multiple of 4"),
        (c.kv_heads <= blocks, f"{c.kv_heads} key heads are more than {blocks} multiprocessors"),
        (c.heads % c.kv_heads == 0, f"{c.heads} heads do not divide over {c.kv_heads}"),
    ]  # fmt: skip
    for good, why in rules:
        if not good:
            raise UnpausedError(f"the tape kernel cannot run this model: {why}")


def static_bytes(width: int) -> int:
    """Of shared memory, for barriers and small tables: an upper bound."""
    return 3072 if width == 1 else 4096


def _aligned(size: int) -> int:
    return ceil_div(size, 128) * 128


def rows_at_once(config: ModelConfig, width: int) -> int:
    """Query rows that share one way through the history: kernels/tape_attention.cuh."""
    groups = ceil_div(width * config.heads // config.kv_heads, 8)
    two_each = groups > 2 and config.head_dim + 4 <= 72  # registers of two groups
    return 8 if width == 1 else 32 if two_each else 16


@dataclass(frozen=True)
class Memory:
    """Dynamic shared memory of a block, in bytes from its start; the ring lies at 0."""

    ring_slots: int
    at_activations: int
    at_kv: int
    at_new: int
    at_sums: int
    at_queries: int
    at_residual: int
    at_turns: int
    at_scores: int
    at_seen: int
    size: int

    def offsets(self) -> list[int]:
        """The at_... fields in order."""
        return [getattr(self, f.name) for f in fields(self) if f.name.startswith("at_")]

    @classmethod
    def of(cls, plan: Plan, width: int, limit: int, scores_in_sums: bool = False) -> Memory:
        """For passes of `width` tokens in `limit` bytes, or `UnpausedError`.

        Attention's queries, and what a wide pass finds with them, lie where the matrices'
        activations do, which nobody reads meanwhile. `scores_in_sums`: so do scores where the sums
        do, if they are not made before the head's last sum is taken.
        """
        c, shares = plan.config, plan.shares
        group = c.heads // c.kv_heads
        kv_tile = TILE * (c.head_dim * 2 + 16)
        chunk = 16 if width == 1 else 8
        at_once = rows_at_once(c, width)
        queries = c.head_dim // 16 * 512 * ceil_div(width * group, at_once) * at_once // 8
        found = (kv_slots(c, width) + 1) * at_once * (c.head_dim + 2) * 4 if width > 1 else 0
        rows = width + width % 2 if width > 1 else 1  # as kernels/tape_matvec.cuh lays them out
        activations = rows * max(padded(c.hidden), padded(c.q_size), down_columns(c)) * 4
        sums = 2 * WARPS * max(chunk, DOWN_UNITS) * width * UNIT
        units = max(s.head_units for s in shares)
        size_of = {
            "at_activations": max(activations, queries + found),
            "at_kv": kv_slots(c, width) * 2 * kv_tile,
            "at_new": 2 * kv_tile,
            "at_sums": max(sums, WARPS * min(8, group) * c.head_dim if width == 1 else 0) * 4,
            "at_residual": width * max(s.out_units for s in shares) * UNIT * 4,
            "at_turns": width * c.head_dim * 4,
            "at_scores": units * UNIT * 4,
            "at_seen": units * UNIT,
        }
        if scores_in_sums:
            size_of["at_sums"] = max(size_of["at_sums"], size_of.pop("at_scores"))
        size_of = {name: _aligned(size) for name, size in size_of.items()}
        slots = min(MAX_SLOTS, (limit - static_bytes(width) - sum(size_of.values())) // SLOT_BYTES)
        if slots < _MIN_SLOTS:
            needed = static_bytes(width) + sum(size_of.values()) + _MIN_SLOTS * SLOT_BYTES
            raise UnpausedError(
                f"the tape kernel needs {needed} bytes of shared memory for passes of {width} "
                f"tokens of this model and the GPU has {limit}: use narrower passes"
            )
        places, end = {}, slots * SLOT_BYTES
        for name, size in size_of.items():
            places[name] = end
            end += size
        places["at_queries"] = places["at_activations"]
        if scores_in_sums:
            places["at_scores"] = places["at_sums"]
        return cls(ring_slots=slots, size=end, **places)
