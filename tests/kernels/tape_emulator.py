"""The whole tape kernel on a CPU: its sources compiled as C++, a few blocks, random schedules.

What is inline PTX is replaced function by function; everything else is the kernel as it stands. It
shows the logic, from the tape to the token, not the GPU's memory ordering and not its speed.
"""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
from pathlib import Path

import torch

from benchmarks.shapes import SHAPES, random_model
from engine import mailbox as mb
from engine.kv_cache import KVCache
from engine.models.base import ModelConfig
from engine.sampling import SamplingParams
from kernels import tape_build as build
from kernels.tape import Choices, TapeKernel
from kernels.tape_pack import pack
from kernels.tape_plan import MAX_WIDTH, Memory, Plan

_HERE = Path(__file__).resolve().parent
_KERNELS = _HERE.parent.parent / "kernels"
_SOURCES = (
    "tape_exchange.cuh", "tape_sums.cuh", "tape_words.cuh", "tape_ring.cuh", "tape_ahead.cuh",
    "tape_matvec.cuh",
    "tape_attention.cuh", "tape_sampling.cuh", "tape_pace.cuh", "tape_params.cuh",
    "tape_block.cuh", "tape_pass.cuh", "tape_item.cuh", "tape_rows.cuh", "tape_combine.cuh",
    "tape_fold.cuh", "tape_step.cuh", "tape_filter.cuh", "tape_head.cuh", "tape_columns.cuh",
    "tape_reply.cuh", "tape_draft.cuh", "tape_feed.cuh", "tape_help.cuh", "tape.cu",
)  # fmt: skip
_OF_DRAFTS = ("tape_pace.cuh", "tape_draft.cuh")
_SHARED_BYTES = 232448
# The function that begins so, and its body on a CPU.
_BODIES = {
    "u64 device_ns()": "return std::chrono::duration_cast<std::chrono::nanoseconds>("
    "std::chrono::steady_clock::now().time_since_epoch()).count();",
    "u64 pass_clock(": "return time_of_pass(step.pass, step.width);",
    "u32 shared_address(": "return (u32)(uintptr_t)p;",
    "u32 kept(u32": "return address;",
    "u32 load_shared_word(": "return *(const volatile u32*)(uintptr_t)address;",
    "void sync_consumers()": "this_block().consumers.wait(CONSUMERS);",
    "void put_pair(": "to[0] = word_of(first, epoch.full), to[1] = word_of(second, epoch.full);",
    "void peek(const u64* from": "give_way(); pair = {from[0], from[1]};",
    "void peek(const Quad* from": "give_way(); quad = *from;",
    "void put(\n    Quad* to": "*to = Quad::of(a, b, c, d, epoch);",
    "void barrier_init(": "*(uint64_t*)(uintptr_t)barrier = new_barrier(count);",
    "void barrier_arrive(": "arrive_at((uint64_t*)(uintptr_t)barrier);",
    "i64 cycles()": "return device_ns();",
    "bool barrier_passed(": "return phase_passed((const uint64_t*)(uintptr_t)barrier, parity);",
    "bool barrier_is_past(": "return phase_passed((const uint64_t*)(uintptr_t)barrier, parity);",
    "u64 read_once()": "return 0;",
    "void mma(float": "matrix_product(c, a, b0, b1);",
    "u32 to_bf16_pair(": "return rounded_to_bf16(low) | rounded_to_bf16(high) << 16;",
    "uint4 load_shared(u32": "return *(const uint4*)(uintptr_t)address;",
    "uint4 load_shared_if(u32": "return wanted ? *(const uint4*)(uintptr_t)address : uint4{};",
    "void load_matrices(": "matrices(address, to, false);",
    "void load_transposed(": "matrices(address, to, true);",
    "float power_of_two(": "return exp2f(x);",
    "void tell(i64*": "*word = value;",
    "void tell_last(i64*": "*word = value;",
    "i64 ask(const": "return *word;",
}
# The statement that has this instruction, and what stands for it.
_STATEMENTS = {
    "st.relaxed.sys": "*fault = told;",
    "cp.async.bulk.prefetch": ";",
    "cp.async.bulk": "if (current->thread % 32 == 0) { "
    "*(int*)(uintptr_t)(barriers + UNITS + slot * 4) = unit; "
    "copy_later((void*)(uintptr_t)(base + slot * SLOT_BYTES), from, SLOT_BYTES, "
    "(uint64_t*)(uintptr_t)full); }",
    "cp.async.cg": "copy_later((void*)(uintptr_t)there, bytes ? keys + from : nullptr, 16, "
    "nullptr);",
    "cp.async.mbarrier": "copy_later(nullptr, nullptr, 0, (uint64_t*)&barriers->full[slot]);",
    "prefetch.global": ";",
    '"+r"(tid)': ";",
    "%%tid.x": "tid = threadIdx.x;",
    "setmaxnreg": "",
    "fence.mbarrier_init": "",
    "cp.async.wait_all": "",
}
_STATEMENT = re.compile(r"asm volatile\((?:[^;\"]|\"[^\"]*\")*\);")


def reason() -> str | None:
    """Why this machine cannot emulate the kernel, or None."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "the emulator needs Linux on x86-64"
    return None if shutil.which("g++") else "no g++"


def translated() -> str:
    """The kernel's sources as one C++ file. A PTX statement nobody knows is a ValueError."""
    source = "\n".join(_source(name) for name in _SOURCES)
    source = re.sub(r'#pragma once|#include "tape[^"]*"', "", source)
    for beginning, body in _BODIES.items():
        source = _with_body(source, beginning, body)
    source = _STATEMENT.sub(lambda found: _statement(found[0]), source)
    source = source.replace(
        "extern __shared__ __align__(1024) u8 dynamic[];",
        "u8* dynamic = (u8*)this_block().shared + 16384;",
    )
    source = source.replace("__shared__ Shared s;", "Shared& s = *(Shared*)this_block().shared;")
    source = source.replace('extern "C" __global__ void', "void")
    return f'#include "tape_host.h"\n{source}\n#include "tape_host_main.h"\n'


def _source(name: str) -> str:
    text = (_KERNELS / name).read_text(encoding="utf-8")
    return f"#ifdef SPECULATE\n{text}\n#endif" if name in _OF_DRAFTS else text


def _statement(ptx: str) -> str:
    for instruction, standing_for in _STATEMENTS.items():
        if instruction in ptx:
            if instruction == "cp.async.cg" and "values" in ptx:
                standing_for = standing_for.replace("keys", "values")
                return standing_for.replace("there,", "(there + KV_TILE_BYTES),", 1)
            return standing_for
    raise ValueError(f"the emulator does not know {ptx}")


def _with_body(source: str, beginning: str, body: str) -> str:
    opening = source.index("{", source.index(beginning))
    depth, at = 0, opening
    while True:
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        if depth == 0:
            return f"{source[:opening]}{{ {body} }}{source[at + 1 :]}"
        at += 1


class EmulatedTape:
    """A tiny model of random weights on `blocks` emulated blocks.

    `costs_ns`: what passes take by width, where the kernel chooses widths by their times.
    `epochs`: how many an exchange's words can tell apart.
    """

    def __init__(
        self,
        config: ModelConfig,
        folder: Path,
        width: int = 1,
        blocks: int = 3,
        tiles: int = 4,
        speculate: bool = False,
        epochs: int = 65535,
    ) -> None:
        SHAPES["emulated"] = config
        self.model = random_model("emulated", "cpu")
        del SHAPES["emulated"]
        self.blocks = blocks
        kernel = object.__new__(TapeKernel)  # all of it but the GPU
        kernel.model, kernel.width, kernel.blocks = self.model, width, blocks
        kernel.choices, kernel.measure, kernel.trace_pass = Choices(split_tiles=tiles), False, -1
        kernel.speculate = speculate
        kernel.plan = Plan.of(config, blocks)
        kernel.memory = Memory.of(kernel.plan, width, _SHARED_BYTES, speculate)
        kernel._tensors = kernel._allocate()
        for name in ("logits", "seen", "prompt", "context", "costs"):
            setattr(kernel, name, kernel.buffer(name))
        kernel.tape = pack(self.model, kernel.plan)
        self.kernel = kernel
        self.logits = kernel.buffer("logits")[: config.vocab]
        self.costs_ns = [1000] * (MAX_WIDTH + 1)
        self.words = torch.zeros(mb.WORDS, dtype=torch.int64)
        self.slots = torch.zeros((config.max_positions + 1, 3), dtype=torch.int64)
        self._library = ctypes.CDLL(str(_library(kernel, epochs, folder)))

    def run(
        self, cache: KVCache, prompt: list[int], params: SamplingParams, *,
        max_tokens: int | None = None, seed: int = 0, stop: bool = False, timeout_s: float = 60.0,
        context: list[int] | None = None,
    ) -> tuple[list[int], int]:  # fmt: skip
        """(tokens, why it ended: a number of engine.mailbox) at the schedule of `seed`.

        `context`: what is to be looked up in, if not what the cache and the prompt hold.
        """
        w = self.words.zero_()
        given = {
            mb.DOORBELL: 1, mb.STOP: int(stop), mb.TIMEOUT_NS: int(timeout_s * 1e9),
            mb.PROMPT_TOKENS: len(prompt), mb.START: cache.length,
            mb.CAPACITY: cache.max_positions,
            mb.KEYS: cache.k.data_ptr(), mb.VALUES: cache.v.data_ptr(), mb.SEED: params.seed,
            mb.MAX_TOKENS: params.max_tokens if max_tokens is None else max_tokens,
            mb.TOP_K: params.top_k, mb.STOP_COUNT: len(params.stop_ids),
            mb.WIDTH: self.kernel.width,
        }  # fmt: skip
        for word, value in given.items():
            w[word] = value
        for number, stop_id in enumerate(params.stop_ids):
            w[mb.STOP_IDS + number] = stop_id
        numbers = [params.temperature, params.top_p, params.min_p, params.repetition_penalty]
        seen = self.kernel.buffer("seen").zero_()
        seen[torch.tensor(cache.token_ids, dtype=torch.int64)] = 1
        self.kernel.buffer("prompt")[: len(prompt)] = torch.tensor(prompt)
        known = context or [*cache.token_ids, *prompt]
        self.kernel.buffer("context").fill_(-1)[: len(known)] = torch.tensor(known)
        self.launch(w, self.slots, w.clone(), torch.tensor(numbers, dtype=torch.float64), seed)
        count = int(w[mb.PUBLISHED])
        return self.slots[:count, 0].tolist(), int(w[mb.FINISH]) & 255

    def launch(
        self,
        words: torch.Tensor,
        slots: torch.Tensor,
        run: torch.Tensor,
        numbers: torch.Tensor,
        seed: int = 0,
    ) -> None:
        """What `TapeKernel.launch` does, until the kernel has ended."""
        self.kernel.clear()
        self.kernel.begin()
        values = self.kernel._params(words, slots, run, numbers)
        pass_ns = (ctypes.c_uint64 * (MAX_WIDTH + 1)).in_dll(self._library, "pass_ns")
        for width, cost_ns in enumerate(self.costs_ns):
            pass_ns[width] = cost_ns
        self._library.run(ctypes.c_void_p(values.ctypes.data), self.blocks, seed)


def _library(kernel: TapeKernel, epochs: int, folder: Path) -> Path:
    source = folder / "tape.cpp"
    source.write_text(translated(), encoding="utf-8")
    macros = build.macros(kernel.model.config, kernel.width, speculate=kernel.speculate)
    macros["EPOCHS"] = str(epochs)
    library = folder / f"tape-{abs(hash(repr(macros)))}.so"
    if not library.exists():
        defines = [f"-D{name}={value}" for name, value in macros.items()]
        command = ["g++", "-O1", "-std=c++17", "-fpermissive", "-w", "-shared", "-fPIC"]
        command += [f"-I{_HERE}", *defines, str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[:2000]
    return library
