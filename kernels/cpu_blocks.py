"""Dot products of GGUF's block formats with quantised activations, as numba intrinsics.

Weights are repacked (kernels/cpu_pack.py) in groups of 16 rows: one vector register holds 4
neighbouring columns of as many rows as it has 32-bit lanes, so that one integer dot product
serves all those rows and nothing is ever summed across lanes. Sums of a block's 32 products are
exact integers; each is scaled and added in float32, block after block.

    Q4_0  w = d (q - 8)    Q4_1  w = d q + m    Q8_0  w = d q
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu_emit import F16, F32, F32_BYTES, I8, I16, I32, I64, Emitter, target_features
from kernels.cpu_vector import GROUP, QUANT

_STEP = 4  # columns of one integer dot product
_F16_BYTES = 2
_i64 = types.int64


class _Dot:
    """acc[lane] += sum over 4 columns of w[lane, c] * a[c], with the best instruction there is.

    `nibbles`: the weights are 0..15; otherwise they are signed bytes.
    """

    def __init__(self, e: Emitter, nibbles: bool) -> None:
        self.e, self.nibbles = e, nibbles
        self.bytes = ir.VectorType(I8, 4 * e.lanes)
        self.shorts = ir.VectorType(I16, 2 * e.lanes)
        x86 = {16: "avx512vnni", 8: "avxvnni"}.get(e.lanes, "")
        wide_vnni = {"avx512vnni", "avx512vl"} <= e.features
        self.vnni = x86 in e.features or (e.lanes == 8 and wide_vnni)
        self.pairs = not self.vnni and (
            (e.lanes == 16 and "avx512bw" in e.features) or e.lanes == 8
        )
        self.sdot = e.lanes == 4 and "dotprod" in e.features

    def begin(self, total: Any) -> Any:
        """An accumulator for one block; `total` is the int32 sum of the activations."""
        if self.pairs and self.nibbles:
            return self.e.constant(self.shorts, 0)
        if self.vnni and not self.nibbles:  # the bytes will be biased by 128: take it back here
            return self.e.splat(self.e.builder.mul(total, I32(-128)), self.e.lanes)
        return self.e.constant(self.e.i32s, 0)

    def step(self, accumulator: Any, w: Any, a: Any) -> Any:
        """`w`, `a`: 4 bytes a lane; `a` is signed and within -127..127."""
        if self.vnni:
            return self._vnni(accumulator, w, a)
        if self.pairs:
            return self._pairs(accumulator, w, a)
        if self.sdot:
            name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
            return self.e.call(name, self.e.i32s, (accumulator, w, a))
        return self._plain(accumulator, w, a)

    def end(self, accumulator: Any) -> Any:
        """The int32 sums."""
        if self.pairs and self.nibbles:
            return self._widen(accumulator)
        return accumulator

    def _vnni(self, accumulator: Any, w: Any, a: Any) -> Any:
        b, ints = self.e.builder, self.e.i32s
        if not self.nibbles:  # the instruction takes the first factor unsigned
            w = b.xor(w, self.e.constant(self.bytes, 0x80))
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.e.lanes}"
        return self.e.call(name, ints, (accumulator, b.bitcast(w, ints), b.bitcast(a, ints)))

    def _pairs(self, accumulator: Any, w: Any, a: Any) -> Any:
        # Pairs of products are added in 16 bits with saturation, which never sets in: 2 * 15 * 127
        # eight times over is 30,480, and 2 * 128 * 127 is 32,512.
        b = self.e.builder
        name = "llvm.x86.avx512.pmaddubs.w.512" if self.e.lanes == 16 else (
            "llvm.x86.avx2.pmadd.ub.sw"
        )  # fmt: skip
        if self.nibbles:
            return b.add(accumulator, self.e.call(name, self.shorts, (w, a)))
        zero = self.e.constant(self.bytes, 0)
        negative = b.icmp_signed("<", w, zero)
        w, a = b.select(negative, b.sub(zero, w), w), b.select(negative, b.sub(zero, a), a)
        return b.add(accumulator, self._widen(self.e.call(name, self.shorts, (w, a))))

    def _widen(self, shorts: Any) -> Any:
        name = "llvm.x86.avx512.pmaddw.d.512" if self.e.lanes == 16 else "llvm.x86.avx2.pmadd.wd"
        return self.e.call(name, self.e.i32s, (shorts, self.e.constant(self.shorts, 1)))

    def _plain(self, accumulator: Any, w: Any, a: Any) -> Any:
        b, lanes = self.e.builder, self.e.lanes
        for column in range(_STEP):
            mask = ir.Constant(ir.VectorType(I32, lanes), [4 * i + column for i in range(lanes)])
            factors = (b.sext(b.shuffle_vector(v, v, mask), self.e.i32s) for v in (w, a))
            accumulator = b.add(accumulator, b.mul(*factors))
        return accumulator


def _make_dot_group(nibbles: bool, minimums: bool, columns: int) -> Any:
    """dot(w, blocks, quants, scales, totals, out, out_step): out[t, r] for the 16 rows of a group.

    w: a group in the layout of `cpu_pack`. Activations, block by block: quants int8
    [blocks, columns, 32], scales float32 [blocks, columns], totals int32 [blocks, columns].
    out: float32, row t begins at out + 4 * t * out_step. Twin: `block_linear`.
    """
    block_bytes = GROUP * QUANT // 2 if nibbles else GROUP * QUANT
    scale_bytes = GROUP * _F16_BYTES

    @intrinsic
    def dot_group(
        typing: Any, w: Any, blocks: Any, quants: Any, scales: Any, totals: Any, out: Any,
        out_step: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder, target_features(context))
            w, blocks, quants, scales, totals, out, out_step = args
            dot = _Dot(e, nibbles)
            w_scales = e.at(w, blocks, block_bytes)
            w_minimums = e.at(w_scales, blocks, scale_bytes)
            halves = ir.VectorType(F16, e.lanes)

            def activation(block: Any, t: int, column: int) -> Any:
                place = e.at(quants, block, columns * QUANT)
                four = e.load(e.at(place, t * QUANT + column), I32)
                return builder.bitcast(e.splat(four, e.lanes), dot.bytes)

            def sums(block: Any, part: int, totals_now: Any) -> Any:
                """Integer dot products of one block, for each column of activations."""
                found = [dot.begin(total) for total in totals_now]
                place = e.at(e.at(w, block, block_bytes), 4 * e.lanes * part)
                for register in range(block_bytes // (4 * GROUP)):
                    raw = e.load(e.at(place, register, 4 * GROUP), dot.bytes)
                    for first, values in _columns(register, raw):
                        for t in range(columns):
                            found[t] = dot.step(found[t], values, activation(block, t, first))
                return [dot.end(value) for value in found]

            def _columns(register: int, raw: Any) -> list[tuple[int, Any]]:
                """(first column, bytes) of what one register holds."""
                if not nibbles:
                    return [(_STEP * register, raw)]
                low = builder.and_(raw, e.constant(dot.bytes, 15))
                high = builder.lshr(raw, e.constant(dot.bytes, 4))
                return [(_STEP * register, low), (QUANT // 2 + _STEP * register, high)]

            def add_block(block: Any, part: int, slots: Any) -> None:
                index = builder.mul(block, I64(columns))
                a_scale, totals_now = (
                    [e.load(e.at(base, builder.add(index, I64(t)), 4), kind, align=4)
                     for t in range(columns)]
                    for base, kind in ((scales, F32), (totals, I32))
                )  # fmt: skip
                offset = _F16_BYTES * e.lanes * part
                scale, minimum = (
                    builder.fpext(e.load(e.at(e.at(base, block, scale_bytes), offset), halves),
                                  e.f32s)
                    for base in (w_scales, w_minimums if minimums else w_scales)
                )  # fmt: skip
                if nibbles and not minimums:
                    minimum = builder.fmul(minimum, e.constant(e.f32s, -8.0))
                found = sums(block, part, totals_now)
                for t, slot in enumerate(slots):
                    value = builder.fmul(builder.sitofp(found[t], e.f32s),
                                         e.splat(a_scale[t], e.lanes))  # fmt: skip
                    total = e.fma(value, scale, e.get(slot, e.f32s))
                    if nibbles:
                        a_sum = builder.fmul(builder.sitofp(totals_now[t], F32), a_scale[t])
                        total = e.fma(minimum, e.splat(a_sum, e.lanes), total)
                    e.set(slot, total)

            for part in range(GROUP // e.lanes):
                slots = [e.variable(e.constant(e.f32s, 0.0)) for _ in range(columns)]
                with e.loop(blocks) as block:
                    add_block(block, part, slots)
                for t, slot in enumerate(slots):
                    place = builder.add(builder.mul(I64(t), out_step), I64(e.lanes * part))
                    e.store(e.get(slot, e.f32s), e.at(out, place, F32_BYTES), align=4)
            return context.get_dummy_value()

        return types.void(_i64, _i64, _i64, _i64, _i64, _i64, _i64), emit

    return dot_group


dot_q4_0_1, dot_q4_0_4 = _make_dot_group(True, False, 1), _make_dot_group(True, False, 4)
dot_q4_1_1, dot_q4_1_4 = _make_dot_group(True, True, 1), _make_dot_group(True, True, 4)
dot_q8_0_1, dot_q8_0_4 = _make_dot_group(False, False, 1), _make_dot_group(False, False, 4)
