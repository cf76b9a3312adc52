"""Dot products of GGUF's block formats with quantised activations, as numba intrinsics.

Weights are repacked (kernels/cpu_pack.py) in groups of 16 rows: one vector register holds 4
neighbouring columns of as many rows as it has 32-bit lanes, so that one integer dot product
serves all those rows and nothing is ever summed across lanes. An activation is an integer of two
digits in base 254, each an int8: with one digit the error of the whole model is several times
that of bfloat16, and the second costs no weight traffic. Sums of a block's 32 products are exact
integers; each is scaled and added in float32, block after block.

    Q4_0  w = d (q - 8)    Q4_1  w = d q + m    Q8_0  w = d q
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu_emit import F16, F32, F32_BYTES, I8, I16, I32, I64, Emitter, target_features
from kernels.cpu_quantise import BASE, BIAS, DIGITS, QUANT, SCALE_BYTES
from kernels.cpu_vector import GROUP, WIDTHS

_LINE_BYTES = 64
_STEP = 4  # columns of one integer dot product
_HEADER_BYTES = 2 * GROUP  # float16 of every row, for one block
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

    def begin(self, bias: Any) -> Any:
        """An accumulator for one block; at `bias` is what to begin with if bytes are biased."""
        if self.pairs and self.nibbles:
            return self.e.constant(self.shorts, 0)
        if self.vnni and not self.nibbles:
            return self.e.splat(self.e.load(bias, I32, align=4), self.e.lanes)
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
            w = b.xor(w, self.e.constant(self.bytes, BIAS))
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


class GroupDot:
    """Emits out[t, r] for the 16 rows r of a group and `columns` columns t of activations."""

    def __init__(self, e: Emitter, nibbles: bool, minimums: bool, columns: int) -> None:
        self.e, self.nibbles, self.minimums, self.columns = e, nibbles, minimums, columns
        self.dot = _Dot(e, nibbles)
        self.block_bytes = GROUP * QUANT // 2 if nibbles else GROUP * QUANT

    def emit(self, w: Any, blocks: Any, quants: Any, scales: Any, out: Any, out_step: Any) -> None:
        """The whole kernel; arguments as in `_make_dot_group`."""
        e, b = self.e, self.e.builder
        w_scales = e.at(w, blocks, self.block_bytes)
        w_minimums = e.at(w_scales, blocks, _HEADER_BYTES) if self.minimums else w_scales
        group_bytes = b.sub(e.at(w_minimums, blocks, _HEADER_BYTES), w)
        for part in range(GROUP // e.lanes):  # as many rows as there are lanes
            slots = [e.variable(e.constant(e.f32s, 0.0)) for _ in range(self.columns)]
            with e.loop(blocks) as block:
                header = [self._header(base, block, part) for base in (w_scales, w_minimums)]
                if part == 0:
                    self._prefetch(w, (w_scales, w_minimums), block, group_bytes)
                place = e.at(e.at(w, block, self.block_bytes), 4 * e.lanes * part)
                sizes = ((quants, DIGITS * QUANT), (scales, SCALE_BYTES))
                inputs = [e.at(base, block, size * self.columns) for base, size in sizes]
                self._add_block(place, header, inputs, slots)
            for t, slot in enumerate(slots):
                index = b.add(b.mul(I64(t), out_step), I64(e.lanes * part))
                e.store(e.get(slot, e.f32s), e.at(out, index, F32_BYTES), align=4)

    def _prefetch(self, w: Any, headers: Sequence[Any], block: Any, ahead: Any) -> None:
        """Bring the same block of the next group near: the processor itself loses the thread
        where quants, scales and minimums take turns every few KB.
        """
        e = self.e
        quants = e.at(e.at(w, block, self.block_bytes), ahead)
        for line in range(0, self.block_bytes, _LINE_BYTES):
            e.prefetch(e.at(quants, line))
        for base in dict.fromkeys(headers):
            e.prefetch(e.at(e.at(base, block, _HEADER_BYTES), ahead))

    def _header(self, base: Any, block: Any, part: int) -> Any:
        """Scales or minimums of one block, as floats."""
        place = self.e.at(self.e.at(base, block, _HEADER_BYTES), 2 * self.e.lanes * part)
        halves = self.e.load(place, ir.VectorType(F16, self.e.lanes), align=2)
        return self.e.builder.fpext(halves, self.e.f32s)

    def _add_block(self, place: Any, header: list[Any], inputs: list[Any], slots: Any) -> None:
        """Add one block's share: scale * (integer dot * a_scale) + minimum * a_sum."""
        e, b = self.e, self.e.builder
        quants, scales = inputs
        scale, minimum = header
        if self.nibbles and not self.minimums:
            minimum = b.fmul(scale, e.constant(e.f32s, -8.0))
        found = self._integer_sums(place, quants, scales)
        for t, slot in enumerate(slots):
            a_scale, a_sum = (
                e.splat(e.load(e.at(scales, SCALE_BYTES * t + at), F32, align=4), e.lanes)
                for at in (0, 4)
            )
            high, low = (b.sitofp(found[t, digit], e.f32s) for digit in range(DIGITS))
            value = e.fma(high, e.constant(e.f32s, float(BASE)), low)
            total = e.fma(b.fmul(value, a_scale), scale, e.get(slot, e.f32s))
            if self.nibbles:
                total = e.fma(minimum, a_sum, total)
            e.set(slot, total)

    def _integer_sums(self, place: Any, quants: Any, scales: Any) -> dict[tuple[int, int], Any]:
        """int32 dot products of one block, for each (column of activations, digit)."""
        e, b, dot = self.e, self.e.builder, self.dot
        found = {
            (t, digit): dot.begin(e.at(scales, SCALE_BYTES * t + 8 + 4 * digit))
            for t in range(self.columns)
            for digit in range(DIGITS)
        }
        for register in range(self.block_bytes // (4 * GROUP)):
            raw = e.load(e.at(place, register, 4 * GROUP), dot.bytes)
            for first, values in self._columns(register, raw):
                for t, digit in found:
                    four = e.load(e.at(quants, (DIGITS * t + digit) * QUANT + first), I32)
                    a = b.bitcast(e.splat(four, e.lanes), dot.bytes)
                    found[t, digit] = dot.step(found[t, digit], values, a)
        return {cell: dot.end(value) for cell, value in found.items()}

    def _columns(self, register: int, raw: Any) -> list[tuple[int, Any]]:
        """(first column, bytes) of what one register holds."""
        if not self.nibbles:
            return [(_STEP * register, raw)]
        low = self.e.builder.and_(raw, self.e.constant(self.dot.bytes, 15))
        high = self.e.builder.lshr(raw, self.e.constant(self.dot.bytes, 4))
        return [(_STEP * register, low), (QUANT // 2 + _STEP * register, high)]


def _make_dot_group(nibbles: bool, minimums: bool, columns: int) -> Any:
    """dot(w, blocks, quants, scales, out, out_step): out[t, r] for the 16 rows of a group.

    w: a group in the layout of `cpu_pack`. Activations as `quantise_block` makes them: quants int8
    [blocks, columns, 2 digits, 32], scales [blocks, columns, `SCALE_BYTES`].
    out: float32, row t begins at out + 4 * t * out_step. Twin: `block_linear`.
    """

    @intrinsic
    def dot_group(
        typing: Any,
        w: Any,
        blocks: Any,
        quants: Any,
        scales: Any,
        out: Any,
        out_step: Any,
    ) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder, target_features(context))
            GroupDot(e, nibbles, minimums, columns).emit(*args)
            return context.get_dummy_value()

        return types.void(_i64, _i64, _i64, _i64, _i64, _i64), emit

    return dot_group


DOT_Q4_0 = [_make_dot_group(True, False, columns) for columns in WIDTHS]
DOT_Q4_1 = [_make_dot_group(True, True, columns) for columns in WIDTHS]
DOT_Q8_0 = [_make_dot_group(False, False, columns) for columns in WIDTHS]
