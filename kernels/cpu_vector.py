"""Float kernels of the CPU decode step, as numba intrinsics: dot products of rows, softmax,
weighted sums, SiLU, and the quantisation of activations.

Each takes addresses (64-bit integers) and element counts, and is compiled for the vectors of the
machine at hand. The PyTorch twin of each is named in its docstring (kernels/reference.py).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu_emit import (
    BF16_BYTES,
    F32,
    F32_BYTES,
    I32,
    I64,
    Emitter,
    target_features,
)

GROUP = 16  # rows that every matrix kernel computes together
_NEAR_ROWS = 64  # rows of values that stay in the nearest cache while all their columns are read
_i64, _f32 = types.int64, types.float32


def _make_dot_rows(bf16: bool, columns: int) -> Any:
    """dot(w, row_bytes, rows, n, x, out, out_step): out[t, r] = sum of w[r, :n] * x[t, :n].

    w: `rows` rows of float32 or bfloat16, `row_bytes` apart. x: [columns, n] float32, contiguous.
    out: float32, row t begins at out + 4 * t * out_step. Twin: `linear`.
    """
    width = BF16_BYTES if bf16 else F32_BYTES

    @intrinsic
    def dot_rows(
        typing: Any, w: Any, row_bytes: Any, rows: Any, n: Any, x: Any, out: Any, out_step: Any
    ) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder, target_features(context))
            w, row_bytes, rows, n, x, out, out_step = args
            whole = builder.mul(builder.sdiv(n, I64(e.lanes)), I64(e.lanes))
            column_bytes = builder.mul(n, I64(F32_BYTES))
            xs = [e.at(x, builder.mul(I64(t), column_bytes)) for t in range(columns)]

            def products(first: Any, count: int) -> None:
                base = [
                    e.at(w, builder.mul(builder.add(first, I64(r)), row_bytes))
                    for r in range(count)
                ]
                places = [
                    e.at(out, builder.add(builder.mul(I64(t), out_step), first), F32_BYTES)
                    for t in range(columns)
                ]
                zero = e.constant(e.f32s, 0.0)
                sums = [[e.variable(zero) for _ in range(count)] for _ in range(columns)]
                with e.loop(builder.sdiv(n, I64(e.lanes))) as step:
                    index = builder.mul(step, I64(e.lanes))
                    x_now = [e.load(e.at(row, index, F32_BYTES), e.f32s, align=4) for row in xs]
                    for r, row in enumerate(base):
                        weights = e.load_floats(e.at(row, index, width), bf16, e.f32s)
                        for t, column in enumerate(sums):
                            total = e.fma(weights, x_now[t], e.get(column[r], e.f32s))
                            e.set(column[r], total)
                e.store_sums(sums, places)
                with e.loop(n, whole) as index:  # what does not fill a vector
                    for r, row in enumerate(base):
                        weight = e.load_floats(e.at(row, index, width), bf16, F32)
                        for t, place in enumerate(places):
                            value = e.load(e.at(xs[t], index, F32_BYTES), F32, align=4)
                            at = e.at(place, F32_BYTES * r)
                            e.store(e.fma(weight, value, e.load(at, F32, align=4)), at, align=4)

            e.split_rows(rows, e.rows_for(columns), products)
            return context.get_dummy_value()

        return types.void(_i64, _i64, _i64, _i64, _i64, _i64, _i64), emit

    return dot_rows


def _make_weighted_sum(bf16: bool, columns: int) -> Any:
    """weighted_sum(p, p_step, v, rows, n, out, out_step): out[t, :n] += p[t, r] * v[r, :n].

    Row after row. p, out: float32, row t begins at 4 * t * step. v: [rows, n] float32 or bfloat16,
    contiguous. Twin: `attention`.
    """
    width = BF16_BYTES if bf16 else F32_BYTES

    @intrinsic
    def weighted_sum(
        typing: Any, p: Any, p_step: Any, v: Any, rows: Any, n: Any, out: Any, out_step: Any
    ) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder, target_features(context))
            p, p_step, v, rows, n, out, out_step = args
            row_bytes = builder.mul(n, I64(width))
            shares = [e.at(p, builder.mul(I64(t), p_step), F32_BYTES) for t in range(columns)]
            places = [e.at(out, builder.mul(I64(t), out_step), F32_BYTES) for t in range(columns)]
            whole = builder.mul(builder.sdiv(n, I64(e.lanes)), I64(e.lanes))

            def add(first: Any, last: Any, index: Any, kind: Any, count: int) -> None:
                """Rows first .. last - 1 to `count` values of `kind` from `index` on."""
                lanes = kind.count if isinstance(kind, ir.VectorType) else 1
                indices = [builder.add(index, I64(i * lanes)) for i in range(count)]
                targets = [[e.at(place, i, F32_BYTES) for i in indices] for place in places]
                totals = [[e.variable(e.load(at, kind, align=4)) for at in row] for row in targets]
                with e.loop(last, first) as r:
                    row = e.at(v, builder.mul(r, row_bytes))
                    values = [e.load_floats(e.at(row, i, width), bf16, kind) for i in indices]
                    for share, column in zip(shares, totals, strict=True):
                        factor = e.load(e.at(share, r, F32_BYTES), F32, align=4)
                        wide = factor if kind is F32 else e.splat(factor, e.lanes)
                        for value, total in zip(values, column, strict=True):
                            e.set(total, e.fma(value, wide, e.get(total, kind)))
                for row, column in zip(targets, totals, strict=True):
                    for at, total in zip(row, column, strict=True):
                        e.store(e.get(total, kind), at, align=4)

            at_once = e.rows_for(columns)  # vectors of a row
            wide_step = at_once * e.lanes
            wide_end = builder.mul(builder.sdiv(n, I64(wide_step)), I64(wide_step))
            blocks = builder.sdiv(builder.add(rows, I64(_NEAR_ROWS - 1)), I64(_NEAR_ROWS))
            with e.loop(blocks) as block:
                first = builder.mul(block, I64(_NEAR_ROWS))
                end = builder.add(first, I64(_NEAR_ROWS))
                last = builder.select(builder.icmp_signed("<", end, rows), end, rows)
                with e.loop(builder.sdiv(n, I64(wide_step))) as step:
                    add(first, last, builder.mul(step, I64(wide_step)), e.f32s, at_once)
                with e.loop(builder.sdiv(builder.sub(whole, wide_end), I64(e.lanes))) as step:
                    index = builder.add(wide_end, builder.mul(step, I64(e.lanes)))
                    add(first, last, index, e.f32s, 1)
                with e.loop(n, whole) as index:
                    add(first, last, index, F32, 1)
            return context.get_dummy_value()

        return types.void(_i64, _i64, _i64, _i64, _i64, _i64, _i64), emit

    return weighted_sum


TILE = 4  # columns at once; of more, every four read the rows again, from the nearest cache
WIDTHS = range(1, TILE + 1)  # columns that there are kernels for
DOT_ROWS_BF16 = [_make_dot_rows(True, columns) for columns in WIDTHS]
DOT_ROWS_F32 = [_make_dot_rows(False, columns) for columns in WIDTHS]
WEIGHTED_SUM_BF16 = [_make_weighted_sum(True, columns) for columns in WIDTHS]
WEIGHTED_SUM_F32 = [_make_weighted_sum(False, columns) for columns in WIDTHS]


@intrinsic
def largest(typing: Any, address: Any, n: Any) -> Any:
    """The largest of `n` float32 values; `n` is a multiple of `GROUP`, and there are no NaNs."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, target_features(context))
        best = e.variable(e.constant(e.f32s, float("-inf")))
        with e.loop(builder.sdiv(args[1], I64(e.lanes))) as step:
            values = e.load(e.at(args[0], step, F32_BYTES * e.lanes), e.f32s, align=4)
            e.set(best, e.larger(values, e.get(best, e.f32s)))
        return e.max(e.get(best, e.f32s))

    return _f32(_i64, _i64), emit


@intrinsic
def first_equal(typing: Any, address: Any, n: Any, value: Any) -> Any:
    """Where among `n` float32 (a multiple of `GROUP`) the first `value` is; 0 if none is."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, target_features(context))
        address, n, value = args
        wanted, far = e.splat(value, e.lanes), e.constant(e.i32s, 0x7FFFFFFF)
        lanes = ir.Constant(e.i32s, list(range(e.lanes)))
        best = e.variable(far)
        with e.loop(builder.sdiv(n, I64(e.lanes))) as step:
            values = e.load(e.at(address, step, F32_BYTES * e.lanes), e.f32s, align=4)
            start = builder.trunc(builder.mul(step, I64(e.lanes)), I32)
            places = builder.add(e.splat(start, e.lanes), lanes)
            equal = builder.fcmp_ordered("==", values, wanted)
            places = builder.select(equal, places, far)
            known = e.get(best, e.i32s)
            nearer = builder.icmp_signed("<", places, known)
            e.set(best, builder.select(nearer, places, known))
        name = f"llvm.vector.reduce.smin.v{e.lanes}i32"
        found = e.call(name, I32, (e.get(best, e.i32s),))
        none = builder.icmp_signed("==", found, I32(0x7FFFFFFF))
        return builder.zext(builder.select(none, I32(0), found), I64)

    return _i64(_i64, _i64, _f32), emit


@intrinsic
def sum_squares(typing: Any, address: Any, n: Any) -> Any:
    """The sum of the squares of `n` float32 values. Twin: `rms_norm`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, target_features(context))
        whole = builder.sdiv(args[1], I64(e.lanes))
        partial = e.variable(e.constant(e.f32s, 0.0))
        with e.loop(whole) as step:
            values = e.load(e.at(args[0], step, F32_BYTES * e.lanes), e.f32s, align=4)
            e.set(partial, e.fma(values, values, e.get(partial, e.f32s)))
        total = e.variable(e.sum(e.get(partial, e.f32s)))
        with e.loop(args[1], builder.mul(whole, I64(e.lanes))) as index:
            value = e.load(e.at(args[0], index, F32_BYTES), F32, align=4)
            e.set(total, e.fma(value, value, e.get(total, F32)))
        return e.get(total, F32)

    return _f32(_i64, _i64), emit


@intrinsic
def exp_sum(typing: Any, source: Any, target: Any, n: Any, scale: Any, shift: Any) -> Any:
    """target = exp(scale * source - shift) over `n` float32 (a multiple of `GROUP`); their sum."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, target_features(context))
        source, target, n, scale, shift = args
        total = e.variable(e.constant(e.f32s, 0.0))
        scales, shifts = e.splat(scale, e.lanes), e.splat(builder.fneg(shift), e.lanes)
        with e.loop(builder.sdiv(n, I64(e.lanes))) as step:
            values = e.load(e.at(source, step, F32_BYTES * e.lanes), e.f32s, align=4)
            values = e.exp(e.fma(values, scales, shifts))
            e.store(values, e.at(target, step, F32_BYTES * e.lanes), align=4)
            e.set(total, builder.fadd(e.get(total, e.f32s), values))
        return e.sum(e.get(total, e.f32s))

    return _f32(_i64, _i64, _i64, _f32, _f32), emit
