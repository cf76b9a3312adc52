"""A model's weights as the CPU kernels read them: a table of addresses and what keeps it valid.

Block formats are repacked from the memory-mapped file, tensor by tensor; everything else is read
where the model holds it, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from engine.models.base import Model
from engine.weights import layout
from kernels import cpu_state as state
from kernels.cpu_pack import BLOCK_FORMATS, GROUP, pack

_FORMATS = {"Q8_0": state.Q8_0, "Q4_0": state.Q4_0, "Q4_1": state.Q4_1}
_DTYPES = {torch.float32: state.F32, torch.bfloat16: state.BF16}
_ITEMS_PER_THREAD = 3  # fine enough to even out threads; what each begins with comes unfetched


@dataclass
class CpuWeights:
    """`plan`: int64 [matrices, PLAN_COLUMNS], see kernels/cpu_state.py; float32 norms and biases.

    `formats`: what the matrices are, for people. `bytes_per_token`: read to decode one token.
    """

    plan: np.ndarray
    norms: np.ndarray
    qkv_bias: np.ndarray
    qk_norms: np.ndarray
    formats: str
    bytes_per_token: int
    held: list[object]  # owners of the memory that `plan` points to


def cpu_weights(model: Model, threads: int) -> CpuWeights:
    """The weights of `model`, which is on the CPU in float32 or bfloat16."""
    return _Builder(model, threads).build()


class _Builder:
    def __init__(self, model: Model, threads: int) -> None:
        self.model, self.threads = model, threads
        self.held: list[object] = [model.weights, model.checkpoint]

    def build(self) -> CpuWeights:
        c, w = self.model.config, self.model.weights
        attention, mlp = "model.layers.{}.self_attn.", "model.layers.{}.mlp."
        gate, up = w.gate_up.split(c.intermediate, dim=1)
        jobs: list[tuple[list[str], torch.Tensor]] = []
        for n in range(c.layers):
            a, m = attention.format(n), mlp.format(n)
            jobs += [
                ([f"{a}{part}_proj.weight" for part in "qkv"], w.qkv[n]),
                ([f"{a}o_proj.weight"], w.o[n]),
                ([f"{m}gate_proj.weight"], gate[n]),
                ([f"{m}up_proj.weight"], up[n]),
                ([f"{m}down_proj.weight"], w.down[n]),
            ]
        head = "model.embed_tokens.weight" if c.tied else "lm_head.weight"
        jobs.append(([head], w.lm_head))
        with ThreadPoolExecutor(self.threads) as pool:
            rows = list(pool.map(lambda job: self.matrix(*job), jobs))
        rows.append(rows[-1] if c.tied else self._stored(w.embed))
        plan = np.array(rows, dtype=np.int64)
        used = plan[:-1]
        groups = -(-used[:, state.ROWS] // GROUP)
        sizes = np.where(used[:, state.FORMAT] <= state.BF16, used[:, state.ROWS], groups)
        names = {number: name for name, number in _FORMATS.items()} | {
            state.F32: "float32", state.BF16: "bfloat16",
        }  # fmt: skip
        kinds = dict.fromkeys(names[int(number)] for number in used[:, state.FORMAT])
        return CpuWeights(
            plan,
            self._norms(),
            self._bias(),
            self._qk_norms(),
            " + ".join(kinds),
            int((sizes * used[:, state.STRIDE]).sum()),
            self.held,
        )

    def matrix(self, names: Sequence[str], stored: torch.Tensor) -> list[int]:
        """One row of the plan: from the file's blocks, else from the model's tensor."""
        raw, kind = self._blocks(names)
        if raw is None:
            return self._stored(stored)
        packed = pack(raw, kind, stored.shape[1])
        self.held.append(packed)
        return self._row(packed.ctypes.data, _FORMATS[kind], stored, packed.shape[1])

    def _blocks(self, names: Sequence[str]) -> tuple[np.ndarray | None, str]:
        """The rows of all `names` in a block format that they share, else (None, "")."""
        checkpoint = self.model.checkpoint
        parts = [checkpoint.blocks(name) for name in names] if checkpoint else []
        found = [part for part in parts if part]
        kinds = {kind for _, kind in found}
        if len(kinds) != 1 or len(found) < len(parts) or not kinds <= set(BLOCK_FORMATS):
            return None, ""
        rows = [raw for raw, _ in found]
        return (rows[0] if len(rows) == 1 else np.concatenate(rows)), kinds.pop()

    def _stored(self, tensor: torch.Tensor) -> list[int]:
        """A matrix as it lies in `Weights`: contiguous rows."""
        stride = tensor.stride(0) * tensor.element_size()
        return self._row(tensor.data_ptr(), _DTYPES[tensor.dtype], tensor, stride)

    def _row(self, address: int, form: int, tensor: torch.Tensor, stride: int) -> list[int]:
        rows, columns = tensor.shape
        items = min(-(-rows // GROUP), _ITEMS_PER_THREAD * self.threads)
        return [address, form, rows, columns, stride, items]

    def _norms(self) -> np.ndarray:
        w, names = self.model.weights, layout(self.model.config)
        parts = []
        for n in range(self.model.config.layers):
            parts.append(self._exact(names["attn_norm"][0][0].format(layer=n), w.attn_norm[n]))
            parts.append(self._exact(names["mlp_norm"][0][0].format(layer=n), w.mlp_norm[n]))
        parts.append(self._exact(names["norm"][0][0], w.norm))
        return torch.stack(parts).numpy()

    def _bias(self) -> np.ndarray:
        c, w = self.model.config, self.model.weights
        if w.qkv_bias is None:
            return np.zeros((0, c.qkv_size), dtype=np.float32)
        names = [name for name, _ in layout(c)["qkv_bias"]]
        rows = []
        for n in range(c.layers):
            parts = w.qkv_bias[n].split([c.q_size, c.kv_size, c.kv_size])
            filled = [
                self._exact(name.format(layer=n), part)
                for name, part in zip(names, parts, strict=True)
            ]
            rows.append(torch.cat(filled))
        return torch.stack(rows).numpy()

    def _qk_norms(self) -> np.ndarray:
        c, w = self.model.config, self.model.weights
        if w.q_norm is None or w.k_norm is None:
            return np.zeros((0, 2, c.head_dim), dtype=np.float32)
        names = layout(c)
        rows = []
        for n in range(c.layers):
            for kind, stored in (("q_norm", w.q_norm), ("k_norm", w.k_norm)):
                rows.append(self._exact(names[kind][0][0].format(layer=n), stored[n]))
        return torch.stack(rows).reshape(c.layers, 2, c.head_dim).numpy()

    def _exact(self, name: str, stored: torch.Tensor) -> torch.Tensor:
        """A vector in float32, from the file where there is one: bfloat16 has rounded it."""
        out = torch.empty(stored.shape, dtype=torch.float32)
        if self.model.checkpoint is None or stored.dtype == torch.float32:
            return out.copy_(stored)
        self.model.checkpoint.read_into(name, out)
        return out
