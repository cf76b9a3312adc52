"""A thin layer over llvmlite's builder: native vectors of this target, whatever they are.

Kernels are written once in terms of `Emitter.lanes` floats and come out as AVX-512, AVX2, SSE or
NEON code. Only the integer dot product has a form of its own on each (kernels/cpu_blocks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils

import kernels.cpu_host  # noqa: F401 - before anything is compiled

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
BF16_BYTES, F32_BYTES = 2, 4

# exp(x) = 2**n * exp(r), r = x - n ln 2 in two parts (Cody and Waite, 1980); minimax polynomial
# of exp on |r| <= ln(2) / 2 from Cephes' expf: relative error below 2e-7.
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_EXP_POLYNOMIAL = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
_EXP_LOWEST, _EXP_HIGHEST = -87.3, 88.3  # beyond: no normal float32


def target_features(context: Any) -> frozenset[str]:
    """LLVM's names of what the machine compiled for can do."""
    features = context.codegen().magic_tuple()[2]
    return frozenset(name[1:] for name in features.split(",") if name.startswith("+"))


class Emitter:
    """Emits into `builder`. Addresses are 64-bit integers counted in bytes."""

    def __init__(self, builder: Any, features: frozenset[str]) -> None:
        self.builder = builder
        self.features = features
        self.lanes = 16 if "avx512f" in features else 8 if "avx2" in features else 4
        narrow = {"sse4.2", "avx2"} & features and "avx512f" not in features
        self.registers = 16 if narrow else 32  # of vectors
        self.f32s = ir.VectorType(F32, self.lanes)
        self.i32s = ir.VectorType(I32, self.lanes)

    # Memory

    def at(self, address: Any, offset: Any = 0, step: int = 1) -> Any:
        """address + offset * step; `offset` is a Python or an IR integer."""
        if isinstance(offset, int):
            return self.builder.add(address, I64(offset * step)) if offset else address
        return self.builder.add(address, self.builder.mul(offset, I64(step)))

    def load(self, address: Any, kind: Any, align: int = 1) -> Any:
        pointer = self.builder.inttoptr(address, ir.PointerType(kind))
        return self.builder.load(pointer, align=align, typ=kind)

    def store(self, value: Any, address: Any, align: int = 1) -> None:
        pointer = self.builder.inttoptr(address, ir.PointerType(value.type))
        self.builder.store(value, pointer, align=align)

    def prefetch(self, address: Any) -> None:
        """Start bringing the cache line at `address` near; any address will do."""
        pointer = self.builder.inttoptr(address, ir.PointerType(I8))
        self.call("llvm.prefetch.p0", ir.VoidType(), (pointer, I32(0), I32(3), I32(1)))

    def variable(self, initial: Any) -> Any:
        """A local that a loop may change; LLVM keeps it in a register."""
        slot = cgutils.alloca_once(self.builder, initial.type)
        self.builder.store(initial, slot)
        return slot

    def get(self, slot: Any, kind: Any) -> Any:
        return self.builder.load(slot, typ=kind)

    def set(self, slot: Any, value: Any) -> None:
        self.builder.store(value, slot)

    def load_floats(self, address: Any, bf16: bool, kind: Any) -> Any:
        """`kind` (a float or a vector of them) from float32 or bfloat16 memory."""
        if not bf16:
            return self.load(address, kind, align=4)
        vector = isinstance(kind, ir.VectorType)
        narrow = ir.VectorType(I16, kind.count) if vector else I16
        wide = ir.VectorType(I32, kind.count) if vector else I32
        bits = self.builder.zext(self.load(address, narrow, align=2), wide)
        return self.builder.bitcast(self.builder.shl(bits, self.constant(wide, 16)), kind)

    # Control

    @contextmanager
    def loop(self, count: Any, start: Any = None) -> Iterator[Any]:
        """Indices start (or 0) .. count - 1, as 64-bit integers."""
        with cgutils.for_range(self.builder, count, start=start, intp=I64) as loop:
            yield loop.index

    def each(self, n: Any, body: Callable[[Any, Any], None]) -> None:
        """body(index, kind) over `n` values: whole vectors, and then one by one."""
        whole = self.builder.mul(self.builder.sdiv(n, I64(self.lanes)), I64(self.lanes))
        with self.loop(self.builder.sdiv(n, I64(self.lanes))) as step:
            body(self.builder.mul(step, I64(self.lanes)), self.f32s)
        with self.loop(n, whole) as index:
            body(index, F32)

    def split_rows(self, rows: Any, at_once: int, body: Callable[[Any, int], None]) -> None:
        """body(first row, how many) over `rows`, `at_once` at a time and then one by one."""
        whole = self.builder.sdiv(rows, I64(at_once))
        with self.loop(whole) as index:
            body(self.builder.mul(index, I64(at_once)), at_once)
        with self.loop(rows, self.builder.mul(whole, I64(at_once))) as row:
            body(row, 1)

    # Values

    def constant(self, kind: Any, value: float) -> Any:
        if isinstance(kind, ir.VectorType):
            return ir.Constant(kind, [value] * kind.count)
        return ir.Constant(kind, value)

    def splat(self, scalar: Any, lanes: int) -> Any:
        single = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
        first = self.builder.insert_element(single, scalar, I32(0))
        mask = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return self.builder.shuffle_vector(first, single, mask)

    def fill(self, scalar: Any, kind: Any) -> Any:
        """`scalar` as a `kind` (its own or a vector of it)."""
        return self.splat(scalar, kind.count) if isinstance(kind, ir.VectorType) else scalar

    def narrow(self, value: Any) -> Any:
        """A float or a vector of them as bfloat16's bits: to nearest even, and NaN stays NaN."""
        b, vector = self.builder, isinstance(value.type, ir.VectorType)
        ints, shorts = (
            ir.VectorType(kind, value.type.count) if vector else kind for kind in (I32, I16)
        )
        bits = b.bitcast(value, ints)
        odd = b.and_(b.lshr(bits, self.constant(ints, 16)), self.constant(ints, 1))
        rounded = b.add(bits, b.add(odd, self.constant(ints, 0x7FFF)))
        nan = b.fcmp_unordered("uno", value, value)
        rounded = b.select(nan, self.constant(ints, 0x7FC0 << 16), rounded)
        return b.trunc(b.lshr(rounded, self.constant(ints, 16)), shorts)

    def call(
        self, name: str, result: Any, operands: Sequence[Any], flags: tuple[str, ...] = ()
    ) -> Any:
        """Call the LLVM intrinsic `name`."""
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, operands, fastmath=flags)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, fused."""
        return self.call(f"llvm.fma.{_suffix(c.type)}", c.type, (a, b, c))

    def sum(self, vector: Any) -> Any:
        """Sum over a float vector, as a tree."""
        name = f"llvm.vector.reduce.fadd.{_suffix(vector.type)}"
        return self.call(name, F32, (F32(-0.0), vector), ("reassoc",))

    def sums(self, vectors: Sequence[Any]) -> Any:
        """The sum of each of the float vectors, in one vector; there are a power of two of them,
        at most as many as lanes. Halves are added to halves, however many vectors there are.
        """
        found, count, length = list(vectors), 1, vectors[0].type.count  # of segments, and of one
        while length > 1:
            length //= 2
            low = [segment * 2 * length + i for segment in range(count) for i in range(length)]
            high = [place + length for place in low]
            if len(found) > 1:  # segments of two vectors fill one again
                pairs = list(zip(found[::2], found[1::2], strict=True))
                width = found[0].type.count
                low += [width + place for place in low]
                high += [width + place for place in high]
                count *= 2
            else:
                pairs = [(found[0], found[0])]
            found = [self._halves(a, b, low, high) for a, b in pairs]
        return found[0]

    def rows_for(self, columns: int) -> int:
        """How many rows, a power of two, have an accumulator for each of `columns` in registers."""
        return next(rows for rows in (4, 2, 1) if rows * columns <= self.registers // 2)

    def store_sums(self, vectors: Sequence[Sequence[Any]], places: Sequence[Any]) -> None:
        """Store the sum of each variable of vectors[t], one after another, from places[t] on."""
        rows = len(vectors[0])
        at_once = max(1, self.lanes // rows)
        for first in range(0, len(vectors), at_once):
            some = list(vectors[first : first + at_once])
            count = len(some)
            while len(some) & (len(some) - 1):  # as many as `sums` takes
                some.append(some[-1])
            found = self.sums([self.get(slot, self.f32s) for column in some for slot in column])
            for i in range(count):
                kind = ir.VectorType(I32, rows)
                mask = ir.Constant(kind, list(range(i * rows, (i + 1) * rows)))
                part = self.builder.shuffle_vector(found, found, mask)
                self.store(part, places[first + i], align=4)

    def _halves(self, a: Any, b: Any, low: list[int], high: list[int]) -> Any:
        kind = ir.VectorType(I32, len(low))
        parts = [self.builder.shuffle_vector(a, b, ir.Constant(kind, p)) for p in (low, high)]
        return self.builder.fadd(*parts)

    def max(self, vector: Any) -> Any:
        name = f"llvm.vector.reduce.fmax.{_suffix(vector.type)}"
        return self.call(name, F32, (vector,), ("nnan",))

    def nearest(self, x: Any) -> Any:
        """x rounded to an integer, halves to even."""
        return self.call(f"llvm.nearbyint.{_suffix(x.type)}", x.type, (x,))

    def larger(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def exp(self, x: Any) -> Any:
        """e**x, elementwise; saturates where float32 has no normal number."""
        b, kind = self.builder, x.type
        ints = ir.VectorType(I32, kind.count) if isinstance(kind, ir.VectorType) else I32

        def number(value: float) -> Any:
            return self.constant(kind, value)

        lowest, highest = number(_EXP_LOWEST), number(_EXP_HIGHEST)
        x = self.larger(x, lowest)
        x = b.select(b.fcmp_ordered("<", x, highest), x, highest)
        scaled = b.fmul(x, number(_LOG2_E))
        n = self.nearest(scaled)
        r = self.fma(n, number(-_LN2_HIGH), x)
        r = self.fma(n, number(-_LN2_LOW), r)
        polynomial = number(_EXP_POLYNOMIAL[0])
        for coefficient in _EXP_POLYNOMIAL[1:]:
            polynomial = self.fma(polynomial, r, number(coefficient))
        value = b.fadd(self.fma(b.fmul(polynomial, r), r, r), number(1.0))
        exponent = b.add(b.fptosi(n, ints), self.constant(ints, 127))
        return b.fmul(value, b.bitcast(b.shl(exponent, self.constant(ints, 23)), kind))


def _suffix(kind: Any) -> str:
    """How LLVM writes a float type in an intrinsic's name."""
    return f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
