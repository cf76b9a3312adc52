"""Single values at addresses, in formats that numba has no type for."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu_emit import F16, F32, I8, Emitter, target_features


def _make_read(kind: Any, result: Any, signature_type: Any) -> Any:
    @intrinsic
    def read(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder, target_features(context))
            value = e.load(args[0], kind)
            return builder.fpext(value, F32) if kind is F16 else builder.zext(value, result)

        return signature_type(types.int64), emit

    return read


read_u8 = _make_read(I8, ir.IntType(64), types.int64)
read_f16 = _make_read(F16, F32, types.float32)


def _make_read_float(bf16: bool) -> Any:
    @intrinsic
    def read(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return Emitter(builder, target_features(context)).load_floats(args[0], bf16, F32)

        return types.float32(types.int64), emit

    return read


read_bf16, read_f32 = _make_read_float(True), _make_read_float(False)
