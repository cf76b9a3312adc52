"""The persistent kernel bound to a model: its grid, its tiles, its buffers, its one launch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import UnpausedError
from engine.models.base import Model, ModelConfig
from kernels.decode_step import decode_reply
from kernels.grid_barrier import sync_words
from kernels.ops import DTYPES, SCORES, StepKernels
from kernels.tuning import EARLY, Tile, Tuning, power_of_two, sizes

# Weights of a gate matrix from which on a stage asks L2 for a round beyond the two in registers:
# worth 10 us a token to Llama-3.1-8B, nothing to 1B, and costs SmolLM2 6 us.
_LARGE = 1 << 24
_CHUNK = 256  # scores a program of the filters takes at a time: 32 values a thread


@dataclass(frozen=True)
class Grid:
    """How the resident programs lie on the GPU."""

    programs_per_sm: int
    warps: int
    tile: int  # weights a program holds at once

    @property
    def registers(self) -> int:
        """Registers a thread may have for all programs of an SM to be resident (64 Ki an SM)."""
        return min(255, 65536 // (self.programs_per_sm * self.warps * 32) // 8 * 8)


DEFAULT_GRID = Grid(2, 4, 8192)


class PersistentKernel(StepKernels):
    """`decode_reply` on `model` with `programs` resident programs.

    `run`: int64 [mailbox.WORDS] and `numbers`: float64 [mailbox.NUMBERS], the device's copies of
    the mailbox. `seen`: int8 [vocab], the tokens a repetition penalty applies to.
    """

    def __init__(
        self, model: Model, grid: Grid = DEFAULT_GRID, tuning: Tuning | None = None
    ) -> None:
        self.grid = grid
        self.programs = _programs(grid, model.device)
        super().__init__(
            model, tuning or tiles_for(model.config, self.programs, grid.tile),
            head_programs=self.programs,
        )  # fmt: skip
        t = self.tuning
        if t.splits > 1 and model.config.kv_heads * t.splits > self.programs:
            raise ValueError("the parts of attention wait for one another: one program each")
        # By an instruction of sm_90 and newer.
        self.asks_ahead = self.on_gpu and torch.cuda.get_device_capability(model.device) >= (9, 0)
        self.sync = torch.zeros(
            sync_words(model.config.kv_heads), dtype=torch.int32, device=model.device
        )

    def launch(
        self, box: torch.Tensor, slots: torch.Tensor, run: torch.Tensor, numbers: torch.Tensor
    ) -> None:
        """Decode a reply. `box`, `slots`: the mailbox's words and slots in pinned host memory.

        Asynchronous on a GPU, in the order of the current stream.
        """
        self.sync.zero_()
        decode_reply[(self.programs,)](
            box, slots, run, numbers, *self._pointers(), **self._constants(),
            **self._options(),
        )  # fmt: skip

    def check(self, run: torch.Tensor, numbers: torch.Tensor) -> None:
        """Compile the kernel; `UnpausedError` with the numbers unless all programs fit at once."""
        if not self.on_gpu:
            return
        kernel = decode_reply.warmup(
            run, run, run, numbers, *self._pointers(),
            **self._constants(), **self._options(), grid=(self.programs,),
        )  # fmt: skip
        kernel._init_handles()
        threads = 32 * self.grid.warps
        fit = resident_blocks(kernel.function, threads, kernel.metadata.shared)
        if fit < self.grid.programs_per_sm:
            raise UnpausedError(
                f"the persistent kernel needs {self.grid.programs_per_sm} programs of {threads} "
                f"threads on every multiprocessor at once, with {kernel.n_regs} registers a "
                f"thread and {kernel.metadata.shared} bytes of shared memory; {fit} fit"
            )

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"num_warps": self.grid.warps, "num_stages": 1}
        if self.on_gpu:
            options |= {"launch_cooperative_grid": True, "maxnreg": self.grid.registers}
        return options

    def _pointers(self) -> list[torch.Tensor]:
        w = self.model.weights
        unused = w.norm  # where a model has no such weights; never read
        return [
            self.sync, w.embed, w.attn_norm, w.qkv, _or(w.qkv_bias, unused), _or(w.q_norm, unused),
            _or(w.k_norm, unused), w.o, w.mlp_norm, w.gate_up, w.down, w.norm, w.lm_head,
            self.cos, self.sin, self.x, self.qkv, self.attended, self.activated, self.logits,
            self.seen, self.part_out, self.part_max, self.part_sum,
            self.best, self.best_id, self.top, self.exp_max, self.exp_sum,
            self.kept_best, self.kept_best_id, self.above, self.mass,
        ]  # fmt: skip

    def _constants(self) -> dict[str, Any]:
        c, w, t = self.model.config, self.model.weights, self.tuning
        tiles = {"QKV": t.qkv, "O": t.o, "GATE": t.gate_up, "DOWN": t.down, "HEAD": t.head}
        shapes = {f"{name}_ROWS": tile.rows for name, tile in tiles.items()}
        shapes |= {f"{name}_K": tile.block_k for name, tile in tiles.items()}
        return shapes | {
            "LAYERS": c.layers, "HIDDEN": c.hidden, "INTERMEDIATE": c.intermediate,
            "VOCAB": c.vocab, "HEADS": c.heads, "KV_HEADS": c.kv_heads, "D": c.head_dim,
            "EPS": c.rms_eps, "SCALE": c.head_dim**-0.5, "BIAS": int(w.qkv_bias is not None),
            "QK_NORM": int(w.q_norm is not None), "BLOCK_H": power_of_two(c.hidden),
            "BLOCK_D": max(16, power_of_two(c.head_dim)),
            "BLOCK_G": max(16, 2 * power_of_two(c.heads // c.kv_heads)),
            "BLOCK_N": t.block_n, "SPLITS": t.splits, "BLOCK_S": power_of_two(t.splits),
            "BLOCK_C": power_of_two(-(-c.q_size // (c.kv_heads * t.splits))),
            "SEGMENT": self.segment, "BLOCK_SEGMENT": power_of_two(self.segment),
            "BLOCK_P": power_of_two(self.heads), "BLOCK": SCORES,
            "CHUNK": _CHUNK, "BLOCKS": self.blocks, "BLOCK_B": power_of_two(self.blocks),
            "AHEAD": int(self.asks_ahead and c.hidden * c.intermediate > _LARGE),
            "DTYPE": DTYPES[self.model.dtype], "GRID": self.programs, "DEVICE": self.on_gpu,
        }  # fmt: skip


def tiles_for(config: ModelConfig, programs: int, weights: int) -> Tuning:
    """Tiles of about `weights` weights that leave the fewest programs idle."""
    chosen: dict[str, Any] = {
        kind: _tile(rows, columns, programs, weights, kind == "head")
        for kind, (rows, columns) in sizes(config).items()
    }
    splits = max(1, min(64, power_of_two(programs // config.kv_heads + 1) // 2))
    # Keys and values of a round and of the next take as many registers as tiles of a matrix.
    block_n = max(16, min(64, 4096 // power_of_two(config.head_dim)))
    rest: dict[str, Any] = {"splits": splits, "block_n": block_n, "attention_warps": 4, "ahead": 0}
    return Tuning(**chosen, **rest, attention_trigger=EARLY)


def _tile(rows: int, columns: int, programs: int, weights: int, head: bool) -> Tile:
    """Whole rows where a tile holds two of them; as many as leave the fewest programs idle.

    Of equals the tile with most rows; the rounds of the head end where its segments do.
    """
    block_k = power_of_two(columns)
    if 2 * block_k > weights:
        block_k = weights // 8
    most = weights // block_k
    best: tuple[float, Tile] | None = None
    for per_program in (most,) if head else (most, most // 2, most // 4):
        if per_program < 2:
            break
        per_round = per_program * programs
        waste = -(-rows // per_round) * per_round / rows
        if best is None or waste < best[0] - 0.02:
            best = (waste, Tile(per_program, block_k, 4))
    assert best is not None
    return best[1]


def resident_blocks(function: int, threads: int, shared_bytes: int) -> int:
    """Blocks of a loaded kernel that fit on one multiprocessor at once, by the driver's count."""
    count, driver = ctypes.c_int(), ctypes.CDLL("libcuda.so.1")
    code = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(count), ctypes.c_void_p(function), ctypes.c_int(threads),
        ctypes.c_size_t(shared_bytes),
    )  # fmt: skip
    if code != 0:
        raise UnpausedError(f"the driver could not tell how many blocks fit (error {code})")
    return count.value


def _programs(grid: Grid, device: torch.device) -> int:
    if device.type != "cuda":  # interpreted, one program after another
        return 1
    return grid.programs_per_sm * torch.cuda.get_device_properties(device).multi_processor_count


def _or(tensor: torch.Tensor | None, otherwise: torch.Tensor) -> torch.Tensor:
    return otherwise if tensor is None else tensor
