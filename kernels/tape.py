"""The tape kernel bound to a model: its tapes, its buffers, its launch.

`TapeKernel` is what engine/persistent_tape.py drives; the kernel itself is tape.cu. Everything is
allocated and loaded here: a launch touches nothing that could wait for a kernel in flight.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.errors import UnpausedError
from engine.models.base import Model, ModelConfig
from engine.models.rope import rope_table
from kernels import tape_build as build
from kernels.tape_driver import call, load
from kernels.tape_pack import pack
from kernels.tape_plan import MAX_WIDTH, Memory, Plan, kv_slots

THREADS = 384
CANDIDATE_WORDS, DIGIT_WORDS = 6, 18
MARKS = 8
_CYCLE_MARKS, _FIRST_NS = [0, 1, 2, 3, 5, 6], 10_000
_STAGE_MARKS = 6  # stages of a layer that are traced


@dataclass(frozen=True)
class Choices:
    """What may be tuned. `in_flight`: copies under way at a time, of 16 KB each; `quiet`: as many
    while the block waits for others, whose messages queue behind them.

    `ahead`: slots of the tape that L2 is asked for while the ring is full, one in `pace` cycles.
    `split_tiles`: tiles of 16 positions that one block attends to as long as blocks are left.
    """

    in_flight: int = 3
    quiet: int = 1
    ahead: int = 16
    pace: int = 1000
    split_tiles: int = 4

    def __post_init__(self) -> None:
        if min(self.in_flight, self.quiet, self.split_tiles) < 1 or min(self.ahead, self.pace) < 0:
            raise UnpausedError(f"the tape cannot run with {self}: nothing would ever be copied")

    @classmethod
    def of(cls, plan: Plan, width: int = 1) -> Choices:
        """Measured on an H200: benchmarks/TUNING.md."""
        slots = max(share.layer_slots for share in plan.shares) / plan.config.layers
        tiles = kv_slots(plan.config, width)
        if slots > _LONG_LAYER:  # waits are few and short beside the stream
            return cls(in_flight=4, quiet=2, ahead=0, split_tiles=tiles)
        if slots > _SHORT_LAYER:
            return cls(split_tiles=tiles)
        return cls(in_flight=4, ahead=8, split_tiles=tiles)


_LONG_LAYER, _SHORT_LAYER = 128, 32  # slots of a block


class TapeKernel:
    """One model's tape on its GPU. `width`: the most tokens of a pass, at most 8.

    `tape`: that of another kernel of the same model, to share it. `speculate`: passes verify what
    the kernel drafts. `logits`: float32 [vocab], of the last token sampled; where drafts are
    verified, of the last pass's first. `seen`: int8 [vocab], what a repetition penalty applies to.
    `prompt`: int64 [positions], the tokens to feed first. `context`: int32 [positions + 1], with
    `speculate` every token of the cache and the prompt. `costs`: float32 [MAX_WIDTH + 1], what
    passes of each width took.
    """

    def __init__(
        self,
        model: Model,
        width: int = 1,
        choices: Choices | None = None,
        measure: bool = False,
        tape: torch.Tensor | None = None,
        speculate: bool = False,
    ) -> None:
        device, c = model.device, model.config
        properties: Any = torch.cuda.get_device_properties(device)
        self.model, self.width = model, width
        self.measure, self.speculate = measure, speculate
        self.blocks = properties.multi_processor_count
        self.plan = Plan.of(c, self.blocks)
        self.choices = choices or Choices.of(self.plan, width)
        limit = properties.shared_memory_per_block_optin
        self.memory = Memory.of(self.plan, width, limit, speculate)
        arch = build.architecture((properties.major, properties.minor))
        macros = build.macros(c, width, measure, speculate)
        code = build.compiled(macros, arch, properties.name)
        torch.cuda.current_stream(device)  # the context that the module is loaded into
        self._function = load(code, "tape_decode", THREADS, self.memory.size)
        self._tensors = self._allocate()
        self.tape = pack(model, self.plan) if tape is None else tape
        self.logits = self._tensors["logits"][: c.vocab]
        self.seen = self._tensors["seen"]
        self.prompt = self._tensors["prompt"]
        self.context, self.costs = self._tensors["context"], self._tensors["costs"]
        self.trace = self._tensors["trace"]
        self.trace_pass = -1

    def launch(
        self, words: torch.Tensor, slots: torch.Tensor, run: torch.Tensor, numbers: torch.Tensor
    ) -> None:
        """Start the kernel on the current stream; see `engine.resident_gpu.GpuResident`."""
        # What not every pass writes: a part is there when the history is long enough for it.
        self._tensors["parts"].zero_()
        if self.width > 1:  # tokens that narrower passes leave alone
            self.clear()
        self.begin()
        params = self._params(words, slots, run, numbers)
        pointer = (ctypes.c_void_p * 1)(params.ctypes.data)
        call(
            "cuLaunchCooperativeKernel", self._function, self.blocks, 1, 1, THREADS, 1, 1,
            self.memory.size, torch.cuda.current_stream().cuda_stream, ctypes.addressof(pointer),
        )  # fmt: skip

    def begin(self) -> None:
        """No ticket is drawn; nobody has given up, whose earliest place is later than any."""
        self._tensors["tickets"].zero_()
        self._tensors["state"][0] = 0
        self._tensors["state"][2:] = -1

    def clear(self) -> None:
        """Forget what a run left in the exchanges; needed after one that did not end well."""
        for name in _EXCHANGES:
            self._tensors[name].zero_()

    def buffer(self, name: str) -> torch.Tensor:
        """What the kernel reads or writes under `name`: for tests."""
        return self._tensors[name]

    def timeline(self) -> np.ndarray:
        """int64 [blocks, stages, MARKS] of the traced pass, nanoseconds; see tape_params.cuh."""
        rows = self.trace.view(self.blocks, -1, MARKS).cpu().numpy()
        marks, begin, end = rows[:, :-2].copy(), rows[:, -2, None], rows[:, -1, None]
        start_ns, start = begin[..., 0] - begin[..., 0].min(), begin[..., 1]
        ns_per_cycle = (end[..., 0] - begin[..., 0]) / np.maximum(end[..., 1] - start, 1)
        cycles = marks[..., _CYCLE_MARKS]
        ns = _FIRST_NS + start_ns[..., None] + (cycles - start[..., None]) * ns_per_cycle[..., None]
        marks[..., _CYCLE_MARKS] = np.where(cycles > 0, ns, 0)
        return marks

    def _allocate(self) -> dict[str, torch.Tensor]:
        c, plan, width = self.model.config, self.plan, self.width
        device, w = self.model.device, self.model.weights

        def words(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.int64, device=device)

        cos, sin = rope_table(c, c.max_positions, torch.float32, device)
        half, rows = c.head_dim // 2, width if self.speculate else 1
        stages = _STAGE_MARKS * c.layers + 1 + 2  # and two that calibrate
        plan_rows = [share.row_of() for share in plan.shares]
        return {
            "turns": torch.stack((cos[:, :half], sin[:, :half]), dim=-1).contiguous(),
            "ones": torch.ones(c.hidden, dtype=torch.bfloat16, device=device),
            "plan": torch.tensor(plan_rows, dtype=torch.int32).to(device),
            "qkv": words(width * c.qkv_size // 2),
            "parts": words(width * c.heads * plan.splits * c.head_dim // 2),
            "tops": words(width * c.heads * plan.splits * 2),
            "attended": words(width * c.q_size // 2),
            "middle": words(width * c.hidden // 2),
            "activated": words(width * c.intermediate // 2),
            "next": words(width * c.hidden // 2),
            "candidates": words(2 * rows * self.blocks * CANDIDATE_WORDS),
            "digits": words(2 * self.blocks * DIGIT_WORDS),
            "logits": torch.zeros(rows * c.vocab, dtype=torch.float32, device=device),
            "context": torch.zeros(c.max_positions + 1, dtype=torch.int32, device=device),
            "costs": torch.zeros(MAX_WIDTH + 1, dtype=torch.float32, device=device),
            "seen": torch.zeros(c.vocab, dtype=torch.int8, device=device),
            "prompt": words(c.max_positions),
            "state": torch.tensor([0, 1, -1, -1], dtype=torch.int32).to(device),
            "tickets": torch.zeros(2 * c.layers, dtype=torch.int32, device=device),
            "trace": words(self.blocks * stages * MARKS if self.measure else 1),
            "none": w.embed,
        }

    def _params(
        self, words: torch.Tensor, slots: torch.Tensor, run: torch.Tensor, numbers: torch.Tensor
    ) -> np.ndarray:
        """The kernel's `Params`: int64s in its order."""
        w, t, m, plan = self.model.weights, self._tensors, self.memory, self.plan
        optional = [w.embed if x is None else x for x in (w.qkv_bias, w.q_norm, w.k_norm)]
        tensors = [w.embed, w.attn_norm, w.mlp_norm, w.norm, *optional]
        tensors += [t["ones"], t["turns"], t["plan"]]
        tensors += [t[name] for name in _EXCHANGES]
        tensors += [t["logits"], t["seen"], words, slots, run, numbers]
        tensors += [t["prompt"], t["state"], t["tickets"], t["trace"]]
        values = [self.tape.data_ptr(), plan.tape_stride, *(x.data_ptr() for x in tensors)]
        values += [
            plan.qkv_pool, plan.gate_pool, self.width, m.ring_slots,
            min(self.choices.in_flight, m.ring_slots - 1),
            min(self.choices.quiet, m.ring_slots - 1), self.choices.ahead, self.choices.pace,
            plan.splits, self.choices.split_tiles, self.trace_pass,
        ]  # fmt: skip
        values += m.offsets()
        if self.speculate:
            values += [t["context"].data_ptr(), t["costs"].data_ptr()]
        return np.array(values, dtype=np.int64)


_EXCHANGES = (
    "qkv", "parts", "tops", "attended", "middle", "activated", "next", "candidates", "digits",
)  # fmt: skip


def widest_pass(config: ModelConfig, device: torch.device, speculate: bool = False) -> int:
    """The most tokens of a pass whose activations fit beside the ring: 8, 4, 2 or 1."""
    properties: Any = torch.cuda.get_device_properties(device)
    plan = Plan.of(config, properties.multi_processor_count)
    for width in (8, 4, 2):
        with suppress(UnpausedError):
            Memory.of(plan, width, properties.shared_memory_per_block_optin, speculate)
            return width
    return 1
