"""One decode step as kernels launched in order, and the buffers they share.

`StepKernels.step` reads top to bottom as the step: per layer RMSNorm+QKV, attention (RoPE, KV
append, partials, combine), output projection+residual, RMSNorm+gate/up+SiLU, down+residual; then
the head, the filters if any, the draw. Nothing here synchronises or allocates after `__init__`,
so a step can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl

from engine.gpu import mark_seen
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.models.rope import rope_table
from engine.sampling import SamplingParams
from kernels import decode_kernels as dk
from kernels import draw_kernels as draw
from kernels.filters import NO_FILTERS, SCORES, Filtered, Filters, draw_filtered
from kernels.tuning import EARLY, Tile, Tuning, power_of_two

RING = 64  # tokens the ring holds; far more than are ever under way
_HEAD_PROGRAMS = 528  # four a multiprocessor on an H100 or H200
DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class StepKernels:
    """The kernels of `model` bound to their buffers.

    `control`, `settings` and `reals` are described in `kernels.decode_kernels`. `ring`: int64
    [RING, 4], pinned where there is a GPU. `launches` counts every kernel launched. With
    `dependent` they are launched for programmatic dependent launch.
    """

    def __init__(
        self,
        model: Model,
        tuning: Tuning,
        dependent: bool = False,
        head_programs: int | None = None,
    ) -> None:
        c, device = model.config, model.device
        self.model, self.tuning, self.dependent = model, tuning, dependent
        self.on_gpu = device.type == "cuda"
        self.launches = 0

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        def longs(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        # The eager engine's table, in float32 and without the half that repeats.
        cos, sin = rope_table(c, c.max_positions, torch.float32, device)
        self.cos = cos[:, : c.head_dim // 2].contiguous()
        self.sin = sin[:, : c.head_dim // 2].contiguous()
        del cos, sin
        self.x, self.qkv = floats(c.hidden), floats(c.qkv_size)
        self.attended, self.activated = floats(c.q_size), floats(c.intermediate)
        parts = c.kv_heads * tuning.splits
        group = c.heads // c.kv_heads
        self.part_out = floats(parts, group, c.head_dim)
        self.part_max, self.part_sum = floats(parts, group), floats(parts, group)
        self.arrived = torch.zeros(c.kv_heads, dtype=torch.int32, device=device)
        self.logits = floats(c.vocab)
        self.seen = torch.zeros(c.vocab, dtype=torch.int8, device=device)
        rows = tuning.head.rows
        self.segment = -(-c.vocab // ((head_programs or _HEAD_PROGRAMS) * rows)) * rows
        # Of a given number some may own nothing; they say so themselves.
        self.heads = head_programs or -(-c.vocab // self.segment)
        self.blocks = -(-c.vocab // SCORES)
        self.best, self.best_id = floats(self.heads), longs(self.heads).int()
        self.top, self.exp_max = floats(self.heads), floats(self.heads)
        self.exp_sum = floats(self.heads)
        self.kept_best, self.kept_best_id = floats(self.blocks), longs(self.blocks).int()
        self.lows, self.floors = (longs(draw.PASSES.value).int() for _ in range(2))
        self.above, self.mass = floats(2, self.blocks, draw.DIGITS.value), floats(2, self.blocks)
        # What changes every token and what a reply holds constant lie in lines of their own.
        self.control, self.settings, self.reals = longs(16), longs(16), floats(32)
        self.ring = torch.zeros((RING, 4), dtype=torch.int64, pin_memory=self.on_gpu)

    def step(self, filters: Filters = NO_FILTERS) -> None:
        """Launch one decode step: feed the token in `control`, publish the next."""
        self._finish(*self._candidates(filters))

    def _candidates(self, filters: Filters) -> tuple[torch.Tensor, torch.Tensor]:
        """Launch all of a step but its end: where it leaves (best score, its token) of each block
        of the vocabulary.
        """
        for layer in range(self.model.config.layers):
            self._qkv(layer)
            self._attention(layer)
            self._output(layer)
            self._gate_up(layer)
            self._down(layer)
        self._head()
        if filters.any:
            self._filter(filters)
            return self.kept_best, self.kept_best_id
        return self.best, self.best_id

    def bind(self, cache: KVCache, token: int, params: SamplingParams) -> None:
        """Write a reply's state: `token` is fed next, at the end of `cache`."""
        temperature = 0.0 if params.greedy else params.temperature
        log_min_p = math.log(params.min_p) if params.min_p else -3.0e38
        seed = params.seed - 2**64 if params.seed >= 2**63 else params.seed  # as int64
        self._write(self.control, [token, cache.length])
        self._write(
            self.settings,
            [cache.k.data_ptr(), cache.v.data_ptr(), cache.max_positions, seed, params.top_k],
        )
        self._write(self.reals, [temperature, params.top_p, log_min_p, params.repetition_penalty])
        mark_seen(self.seen, cache, params)
        self._embed()

    @staticmethod
    def _write(buffer: torch.Tensor, values: list[int] | list[float]) -> None:
        buffer[: len(values)] = torch.tensor(values, dtype=buffer.dtype).to(buffer.device)

    def _embed(self) -> None:
        """Make the token in `control` the input of the next step; once a reply."""
        c = self.model.config
        draw.embed_kernel[(1,)](
            self.model.weights.embed, self.control, self.x, self.seen,
            K=c.hidden, BLOCK_K=power_of_two(c.hidden), num_warps=8,
        )  # fmt: skip

    def stamp(self, out: torch.Tensor) -> None:
        """Write the device's clock in nanoseconds to `out`, pinned int64 [1]."""
        draw.stamp_kernel[(1,)](out, DEVICE=self.on_gpu, num_warps=1)

    def _launch(
        self, kernel: Any, programs: int | tuple[int, int], warps: int, trigger: int,
        *args: Any, **constants: Any,
    ) -> None:  # fmt: skip
        if self.dependent:
            constants["launch_pdl"] = True
        constants["PDL"] = trigger if self.dependent else 0
        self._run(kernel, programs, *args, **constants, num_warps=warps)
        self.launches += 1

    def _run(
        self, kernel: Any, programs: int | tuple[int, int], *args: Any, **options: Any
    ) -> None:
        grid = programs if isinstance(programs, tuple) else (programs,)
        kernel[grid](*args, **options)

    def _matvec(self, kernel: Any, tile: Tile, n: int, k: int, *args: Any, **more: Any) -> None:
        rows = more.pop("owned", tile.rows)
        self._launch(
            kernel, -(-n // rows), tile.warps, tile.trigger, *args,
            N=n, K=k, ROWS=tile.rows, BLOCK_K=tile.block_k, **more,
        )  # fmt: skip

    def _qkv(self, layer: int) -> None:
        c, w = self.model.config, self.model.weights
        bias = self.qkv if w.qkv_bias is None else w.qkv_bias[layer]
        self._matvec(
            dk.qkv_kernel, self.tuning.qkv, c.qkv_size, c.hidden,
            self.x, w.attn_norm[layer], w.qkv[layer], bias, self.qkv,
            EPS=c.rms_eps, BIAS=w.qkv_bias is not None,
        )  # fmt: skip

    def _attention(self, layer: int) -> None:
        c, w, t = self.model.config, self.model.weights, self.tuning
        q_gain, k_gain, normed = self._gains(layer)
        block_d, block_g = power_of_two(c.head_dim), power_of_two(c.heads // c.kv_heads)
        self._launch(
            dk.attention_kernel, c.kv_heads * t.splits, t.attention_warps, t.attention_trigger,
            self.qkv, q_gain, k_gain, self.cos, self.sin, self.control, self.settings,
            self.part_out, self.part_max, self.part_sum, self.arrived, self.attended,
            w.gate_up[layer], layer,
            HEADS=c.heads, KV_HEADS=c.kv_heads, D=c.head_dim, BLOCK_D=block_d, BLOCK_G=block_g,
            BLOCK_N=t.block_n, SPLITS=t.splits, BLOCK_S=power_of_two(t.splits), EPS=c.rms_eps,
            QK_NORM=normed, SCALE=c.head_dim**-0.5, DTYPE=DTYPES[self.model.dtype],
            AHEAD=self._ahead(), AHEAD_HALF=c.intermediate * c.hidden,
        )  # fmt: skip

    def _gains(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
        """Of the norms of queries and keys, and whether there are any."""
        w = self.model.weights
        if w.q_norm is None or w.k_norm is None:
            return w.norm, w.norm, False  # never read
        return w.q_norm[layer], w.k_norm[layer], True

    def _ahead(self) -> int:
        c, programs = self.model.config, self.model.config.kv_heads * self.tuning.splits
        return min(self.tuning.ahead, c.intermediate * c.hidden // programs // 16 * 16)

    def _output(self, layer: int) -> None:
        c, w = self.model.config, self.model.weights
        self._matvec(
            dk.residual_kernel, self.tuning.o, c.hidden, c.q_size,
            self.attended, w.o[layer], self.x,
        )  # fmt: skip

    def _gate_up(self, layer: int) -> None:
        c, w = self.model.config, self.model.weights
        self._matvec(
            dk.gate_up_kernel, self.tuning.gate_up, c.intermediate, c.hidden,
            self.x, w.mlp_norm[layer], w.gate_up[layer], self.activated,
            EPS=c.rms_eps, owned=self.tuning.gate_up.rows // 2,
        )  # fmt: skip

    def _down(self, layer: int) -> None:
        c, w = self.model.config, self.model.weights
        self._matvec(
            dk.residual_kernel, self.tuning.down, c.hidden, c.intermediate,
            self.activated, w.down[layer], self.x,
        )  # fmt: skip

    def _head(self) -> None:
        c, w = self.model.config, self.model.weights
        self._matvec(
            dk.head_kernel, self.tuning.head, c.vocab, c.hidden,
            self.x, w.norm, w.lm_head, self.logits, self.seen, self.control, self.settings,
            self.reals, self.best, self.best_id, self.top, self.exp_max, self.exp_sum,
            EPS=c.rms_eps, SEGMENT=self.segment, BLOCK_S=power_of_two(self.segment),
            owned=self.segment,
        )  # fmt: skip

    def _filter(self, filters: Filters) -> None:
        of = Filtered(
            self.control, self.settings, self.reals, self.logits, self.seen, self.top, self.lows,
            self.floors, self.above, self.mass, self.kept_best, self.kept_best_id,
        )  # fmt: skip
        draw_filtered(self._launch, filters, of, self.blocks, **self._blocks())

    def _blocks(self) -> dict[str, int]:
        return {
            "N": self.model.config.vocab, "HEADS": self.heads, "BLOCK_H": power_of_two(self.heads),
            "BLOCK": SCORES, "BLOCKS": self.blocks, "BLOCK_B": power_of_two(self.blocks),
        }  # fmt: skip

    def _finish(self, best: torch.Tensor, best_id: torch.Tensor) -> None:
        c = self.model.config
        self._launch(
            draw.finish_kernel, 1, 8, EARLY,
            self.logits, best, best_id, self.exp_max, self.exp_sum, self.control, self.ring,
            self.model.weights.embed, self.x, self.seen,
            PARTS=len(best), BLOCK_P=power_of_two(len(best)), HEADS=self.heads,
            BLOCK_H=power_of_two(self.heads), N=c.vocab, K=c.hidden, BLOCK_K=power_of_two(c.hidden),
            RING=RING, DEVICE=self.on_gpu,
        )  # fmt: skip
