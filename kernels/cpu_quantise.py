"""Activations as integers of two digits, for dot products with block formats (cpu_blocks.py)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu_emit import F32, I8, I32, Emitter, target_features

DIGITS, BASE = 2, 254  # of a quantised activation; each digit is within -127..127
QUANT = 32  # values that share a scale, in GGUF's block formats as in quantised activations
BIAS = 128  # what makes a signed byte an unsigned one
# Beside a quantised block of activations: its scale and the sum of its values, float32; then for
# each digit, int32, -`BIAS` times its sum: where a product with biased bytes begins.
SCALE_BYTES = 16
_i64 = types.int64


def quantised_bytes(values: int) -> int:
    """What so many activations take, quantised."""
    return values * DIGITS + -(-values // QUANT) * SCALE_BYTES


@intrinsic
def quantise_block(typing: Any, x: Any, quants: Any, scales: Any) -> Any:
    """`QUANT` float32 at `x` as integers of two digits times one scale. Twin: `quantise`.

    quants: int8 [2, QUANT], high digits first. scales: `SCALE_BYTES`, see there.
    """
    floats, ints = ir.VectorType(F32, QUANT), ir.VectorType(I32, QUANT)
    highest = float(BASE * 127 + 126)  # with one more the high digit would round to 128

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, target_features(context))
        x, quants, scales = args
        values = e.load(x, floats, align=4)
        magnitude = e.max(e.call(f"llvm.fabs.v{QUANT}f32", floats, (values,)))
        zero = builder.fcmp_ordered("==", magnitude, F32(0.0))
        inverse = builder.select(zero, F32(0.0), builder.fdiv(F32(highest), magnitude))
        scale = builder.fdiv(magnitude, F32(highest))
        whole = e.nearest(builder.fmul(values, e.splat(inverse, QUANT)))
        high = e.nearest(builder.fmul(whole, e.constant(floats, 1.0 / BASE)))
        low = e.fma(high, e.constant(floats, -float(BASE)), whole)
        total = I32(0)
        for digit, value in enumerate((high, low)):
            integers = builder.fptosi(value, ints)
            e.store(builder.trunc(integers, ir.VectorType(I8, QUANT)), e.at(quants, digit * QUANT))
            found = e.call(f"llvm.vector.reduce.add.v{QUANT}i32", I32, (integers,))
            e.store(builder.mul(found, I32(-BIAS)), e.at(scales, 8 + 4 * digit), align=4)
            total = builder.add(builder.mul(total, I32(BASE)), found)
        e.store(scale, scales, align=4)
        e.store(builder.fmul(builder.sitofp(total, F32), scale), e.at(scales, 4), align=4)
        return context.get_dummy_value()

    return types.void(_i64, _i64, _i64), emit
