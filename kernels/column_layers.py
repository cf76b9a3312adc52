"""The buffers and the layers of a pass over several tokens; kernels/column_ops.py has the rest."""

from __future__ import annotations

from typing import Any

import torch

from engine.models.base import Model
from kernels import column_kernels as ck
from kernels.draft_kernels import embed_drafts_kernel
from kernels.draft_stages import MOST
from kernels.ops import DTYPES, StepKernels
from kernels.tuning import EARLY, Tuning, column_tile, power_of_two

_ROOMY_BYTES = 160 * 1024  # what the larger tiles of kernels.tuning.column_tile take, and more


class ColumnLayers(StepKernels):
    """`StepKernels`, and its stages for `columns` tokens at once: a power of two, at most 8.

    Row 0 of each buffer is the one-column buffer of `StepKernels`, so that passes of one token and
    of several can follow each other.
    """

    def __init__(
        self,
        model: Model,
        tuning: Tuning,
        dependent: bool = False,
        columns: int = 1,
    ) -> None:
        super().__init__(model, tuning, dependent)
        c, device = model.config, model.device
        self.columns, self._detached = columns, False
        self._roomy = self.on_gpu and _shared_bytes() >= _ROOMY_BYTES

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        self.xs, self.qkvs = floats(columns, c.hidden), floats(columns, c.qkv_size)
        self.attendeds, self.activateds = floats(columns, c.q_size), floats(columns, c.intermediate)
        self.all_logits = floats(columns, c.vocab)
        self.all_seen = torch.zeros((columns, c.vocab), dtype=torch.int8, device=device)
        self.x, self.logits, self.seen = self.xs[0], self.all_logits[0], self.all_seen[0]
        parts, group = c.kv_heads * columns * tuning.splits, c.heads // c.kv_heads
        self.parts_out = floats(parts, group, c.head_dim)
        self.parts_max, self.parts_sum = floats(parts, group), floats(parts, group)
        self.drafts = torch.zeros(2 * MOST.value, dtype=torch.int32, device=device)

    def layers(self, columns: int) -> None:
        """From the drafts' embeddings to the logits of every column."""
        self._embed_drafts(columns)
        for layer in range(self.model.config.layers):
            self._qkvs(layer, columns)
            self._attend(layer, columns)
            self._outputs(layer, columns)
            self._gates_ups(layer, columns)
            self._downs(layer, columns)
        self._heads(columns)

    def detach(self) -> None:
        """The next kernel starts when the one before has ended, not while it runs.

        Where several steps are captured in one graph: attention looks at the position and the
        cache before it waits, and would see them before the last step has written them.
        """
        self._detached = True

    def _run(
        self, kernel: Any, programs: int | tuple[int, int], *args: Any, **options: Any
    ) -> None:
        if self._detached:
            options.pop("launch_pdl", None)
            self._detached = False
        super()._run(kernel, programs, *args, **options)

    def _embed_drafts(self, columns: int) -> None:
        c = self.model.config
        self._launch(
            embed_drafts_kernel, columns - 1, 4, EARLY,
            self.model.weights.embed, self.drafts, self.xs,
            K=c.hidden, BLOCK_K=power_of_two(c.hidden),
        )  # fmt: skip

    def _product(
        self, kernel: Any, n: int, k: int, columns: int, *args: Any, pairs: bool = False,
        **more: Any,
    ) -> None:  # fmt: skip
        """`n` outputs, each of a pair of rows with `pairs`."""
        tile = column_tile(2 * n if pairs else n, k, self._roomy)
        owned = tile.rows // 2 if pairs else tile.rows
        self._launch(
            kernel, -(-n // owned), tile.warps, EARLY, *args,
            N=n, K=k, ROWS=tile.rows, BLOCK_K=tile.block_k, WARPS=tile.warps, COLUMNS=columns,
            **more,
        )  # fmt: skip

    def _qkvs(self, layer: int, columns: int) -> None:
        c, w = self.model.config, self.model.weights
        bias = self.qkvs if w.qkv_bias is None else w.qkv_bias[layer]
        self._product(
            ck.project_kernel, c.qkv_size, c.hidden, columns,
            self.xs, w.attn_norm[layer], w.qkv[layer], bias, self.qkvs,
            EPS=c.rms_eps, BIAS=w.qkv_bias is not None,
        )  # fmt: skip

    def _attend(self, layer: int, columns: int) -> None:
        c, splits = self.model.config, self.tuning.splits
        q_gain, k_gain, normed = self._gains(layer)
        shape = {
            "HEADS": c.heads, "KV_HEADS": c.kv_heads, "D": c.head_dim,
            "BLOCK_D": power_of_two(c.head_dim), "BLOCK_G": power_of_two(c.heads // c.kv_heads),
            "BLOCK_N": 64 if c.head_dim <= 64 else 32, "SPLITS": splits, "COLUMNS": columns,
        }  # fmt: skip
        self._launch(
            ck.attention_columns_kernel, c.kv_heads * splits, 8 if columns == 8 else 4, EARLY,
            self.qkvs, q_gain, k_gain, self.cos, self.sin, self.control, self.settings,
            self.parts_out, self.parts_max, self.parts_sum, layer,
            **shape, LIMIT=c.max_positions, EPS=c.rms_eps, QK_NORM=normed, SCALE=c.head_dim**-0.5,
            DTYPE=DTYPES[self.model.dtype],
        )  # fmt: skip
        self._launch(
            ck.combine_columns_kernel, c.kv_heads * columns, 4, EARLY,
            self.parts_out, self.parts_max, self.parts_sum, self.control, self.settings,
            self.attendeds, **shape, BLOCK_S=power_of_two(splits),
        )  # fmt: skip

    def _outputs(self, layer: int, columns: int) -> None:
        c, w = self.model.config, self.model.weights
        self._product(
            ck.residual_columns_kernel, c.hidden, c.q_size, columns,
            self.attendeds, w.o[layer], self.xs,
        )  # fmt: skip

    def _gates_ups(self, layer: int, columns: int) -> None:
        c, w = self.model.config, self.model.weights
        self._product(
            ck.gate_up_columns_kernel, c.intermediate, c.hidden, columns,
            self.xs, w.mlp_norm[layer], w.gate_up[layer], self.activateds,
            EPS=c.rms_eps, pairs=True,
        )  # fmt: skip

    def _downs(self, layer: int, columns: int) -> None:
        c, w = self.model.config, self.model.weights
        self._product(
            ck.residual_columns_kernel, c.hidden, c.intermediate, columns,
            self.activateds, w.down[layer], self.xs,
        )  # fmt: skip

    def _heads(self, columns: int) -> None:
        c, w = self.model.config, self.model.weights
        self._product(
            ck.project_kernel, c.vocab, c.hidden, columns,
            self.xs, w.norm, w.lm_head, self.qkvs, self.all_logits, EPS=c.rms_eps, BIAS=False,
        )  # fmt: skip


def _shared_bytes() -> int:
    """Shared memory that a program may have on this GPU."""
    from triton.runtime import driver

    properties = driver.active.utils.get_device_properties(torch.cuda.current_device())
    return int(properties["max_shared_mem"])
