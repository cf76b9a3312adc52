"""Kernels of the CPU decode step that take values one by one, as numba intrinsics: scaling, RoPE,
SiLU, and narrowing.

As in kernels/cpu_vector.py they take addresses and element counts, and whole vectors where there
are any. Where a target and a source are given, they may be the same.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from kernels.cpu_emit import BF16_BYTES, F32_BYTES, Emitter, target_features

_i64, _f32 = types.int64, types.float32


@intrinsic
def scale_row(typing: Any, x: Any, weight: Any, scale: Any, n: Any, out: Any) -> Any:
    """out = x * scale * weight over `n` float32. Twin: `rms_norm`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, target_features(context))
        x, weight, scale, n, out = args

        def body(index: Any, kind: Any) -> None:
            value, factor = (e.load(e.at(at, index, F32_BYTES), kind, 4) for at in (x, weight))
            value = builder.fmul(builder.fmul(value, e.fill(scale, kind)), factor)
            e.store(value, e.at(out, index, F32_BYTES), 4)

        e.each(n, body)
        return context.get_dummy_value()

    return types.void(_i64, _i64, _f32, _i64, _i64), emit


@intrinsic
def rotate_pairs(typing: Any, x: Any, cos: Any, sin: Any, half: Any, out: Any) -> Any:
    """RoPE of one head: elements i and `half` + i of float32 `x` by angle i, into `out`.

    cos, sin: float32 [half]. Twin: `rope`.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e, b = Emitter(builder, target_features(context)), builder
        x, cos, sin, half, out = args
        second, out_second = e.at(x, half, F32_BYTES), e.at(out, half, F32_BYTES)

        def body(index: Any, kind: Any) -> None:
            low, high, c, s = (
                e.load(e.at(at, index, F32_BYTES), kind, 4) for at in (x, second, cos, sin)
            )
            first = b.fsub(b.fmul(low, c), b.fmul(high, s))
            e.store(first, e.at(out, index, F32_BYTES), 4)
            last = b.fadd(b.fmul(high, c), b.fmul(low, s))
            e.store(last, e.at(out_second, index, F32_BYTES), 4)

        e.each(half, body)
        return context.get_dummy_value()

    return types.void(_i64, _i64, _i64, _i64, _i64), emit


def _make_store_row(bf16: bool) -> Any:
    """store_row(x, n, out): `n` float32 as they are, or rounded to bfloat16."""
    width = BF16_BYTES if bf16 else F32_BYTES

    @intrinsic
    def store_row(typing: Any, x: Any, n: Any, out: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder, target_features(context))
            x, n, out = args

            def body(index: Any, kind: Any) -> None:
                value = e.load(e.at(x, index, F32_BYTES), kind, 4)
                e.store(e.narrow(value) if bf16 else value, e.at(out, index, width), width)

            e.each(n, body)
            return context.get_dummy_value()

        return types.void(_i64, _i64, _i64), emit

    return store_row


store_row_bf16, store_row_f32 = _make_store_row(True), _make_store_row(False)


@intrinsic
def silu_multiply(typing: Any, gate: Any, up: Any, out: Any, n: Any) -> Any:
    """out = silu(gate) * up over `n` float32. Twin: `silu_multiply`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, target_features(context))
        gate, up, out, n = args

        def body(index: Any, kind: Any) -> None:
            g, u = (e.load(e.at(at, index, F32_BYTES), kind, 4) for at in (gate, up))
            bottom = builder.fadd(e.exp(builder.fneg(g)), e.constant(kind, 1.0))
            value = builder.fmul(builder.fdiv(g, bottom), u)
            e.store(value, e.at(out, index, F32_BYTES), 4)

        e.each(n, body)
        return context.get_dummy_value()

    return types.void(_i64, _i64, _i64, _i64), emit
