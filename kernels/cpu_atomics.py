"""What compiled threads need to talk to each other and to the system: atomics on 64-bit words,
a pause for spin loops, and a few POSIX calls. All of it runs without the interpreter's lock.

Words are addressed as integers, `address + 8 * index`, because numba has no atomics on arrays.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu_host import kernel

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WORD = ir.PointerType(_I64)

usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
sched_yield = types.ExternalFunction("sched_yield", types.int32())
posix_read = types.ExternalFunction("read", types.int64(types.int32, types.uintp, types.uintp))
posix_write = types.ExternalFunction("write", types.int64(types.int32, types.uintp, types.uintp))
_clock_gettime = types.ExternalFunction(
    "clock_gettime", types.int32(types.int32, types.CPointer(types.int64))
)


@intrinsic
def load_acquire(typing: Any, address: Any) -> Any:
    """The word at `address`; later reads see what its writer had written before it."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _WORD)
        return builder.load_atomic(pointer, "acquire", 8, typ=_I64)

    return types.int64(types.int64), emit


@intrinsic
def store_release(typing: Any, address: Any, value: Any) -> Any:
    """Write the word at `address` after everything this thread wrote before."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _WORD), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def fetch_add(typing: Any, address: Any, value: Any) -> Any:
    """Add `value` to the word at `address`; returns what it was before."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _WORD), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def compare_swap(typing: Any, address: Any, expected: Any, value: Any) -> Any:
    """Set the word at `address` to `value` if it is `expected`; returns whether it was."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _WORD)
        pair = builder.cmpxchg(pointer, args[1], args[2], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@intrinsic
def pause(typing: Any) -> Any:
    """Tell the core that this is a spin loop: it saves power and frees the sibling thread."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        triple = context.codegen().magic_tuple()[0]
        if triple.startswith("x86_64"):
            kind, name, operands = ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause", []
        elif triple.startswith(("aarch64", "arm64")):
            kind = ir.FunctionType(ir.VoidType(), [_I32])
            name, operands = "llvm.aarch64.hint", [ir.Constant(_I32, 1)]  # 1 is YIELD
        else:
            return context.get_dummy_value()
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def _two_words(typing: Any) -> Any:
    """A pointer to two words on the stack."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.alloca_once(builder, _I64, size=2)

    return types.CPointer(types.int64)(), emit


@kernel
def now_ns(clock: int) -> int:
    """Nanoseconds of POSIX clock number `clock` (`time.CLOCK_MONOTONIC` of this system)."""
    spec = _two_words()
    _clock_gettime(clock, spec)
    return spec[0] * 1_000_000_000 + spec[1]
