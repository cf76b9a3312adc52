"""Dot products of block formats against their PyTorch twins, at shapes that do not fit well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from kernels import cpu_matrix, cpu_state, reference
from kernels.cpu_pack import BLOCK_FORMATS, pack
from kernels.cpu_state import Q4_0, Q4_1, Q8_0
from tests.kernels.close import assert_close
from tests.kernels.cpu_workspace import matrix_row, multiply, room_for

FORMATS = {"Q4_0": Q4_0, "Q4_1": Q4_1, "Q8_0": Q8_0}


def blocks_of(kind: str, rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    """(raw rows as in a file, their float32 values); one row is all 0, one has a lone giant."""
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    values[rows // 2] = 0
    values[-1, 5] = 100
    raw = quantize(values, GGMLQuantizationType[kind])
    return raw, torch.from_numpy(dequantize(raw, GGMLQuantizationType[kind]))


@pytest.mark.parametrize("columns", [32, 96, 576])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 8])
def test_dot_products(kind: str, rows: int, columns: int, tokens: int) -> None:
    raw, weight = blocks_of(kind, rows, columns)
    packed = pack(raw, kind, columns)
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(1))
    x[-1, :32] = 0  # a block without any magnitude
    matrix = matrix_row(packed.ctypes.data, FORMATS[kind], rows, columns, packed.shape[1])
    out = multiply(matrix, x)
    assert_close("twin", reference.block_linear(x, weight), out, 2e-6)
    assert_close("exact", reference.linear(x, weight), out, 2e-4)


@pytest.mark.parametrize("kind", FORMATS)
def test_results_repeat_bit_for_bit(kind: str) -> None:
    raw, _ = blocks_of(kind, 48, 96)
    packed = pack(raw, kind, 96)
    x = torch.randn(8, 96)
    matrix = matrix_row(packed.ctypes.data, FORMATS[kind], 48, 96, packed.shape[1])
    assert torch.equal(multiply(matrix, x), multiply(matrix, x))
    one_by_one = torch.cat([multiply(matrix, row[None].clone()) for row in x])
    for width in range(1, cpu_state.CHUNK + 1):
        assert torch.equal(multiply(matrix, x[:width].clone()), one_by_one[:width])


@pytest.mark.parametrize("extreme", [-128, 127])
def test_the_largest_bytes_do_not_saturate(extreme: int) -> None:
    raw = np.zeros((16, 34), dtype=np.uint8)
    raw[:, :2] = np.full(16, 1, dtype=np.float16).view(np.uint8).reshape(16, 2)
    raw[:, 2:] = np.array([extreme], dtype=np.int8).view(np.uint8)
    packed = pack(raw, "Q8_0", 32)
    matrix = matrix_row(packed.ctypes.data, Q8_0, 16, 32, packed.shape[1])
    for sign in (1.0, -1.0):
        out = multiply(matrix, torch.full((1, 32), sign))
        torch.testing.assert_close(out, torch.full((1, 16), 32.0 * extreme * sign))


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_are_looked_up_where_they_were_packed(kind: str) -> None:
    raw, weight = blocks_of(kind, 35, 96)
    packed = pack(raw, kind, 96)
    matrix = matrix_row(packed.ctypes.data, FORMATS[kind], 35, 96, packed.shape[1])
    for token in (0, 1, 15, 16, 34):
        out = np.full(96, np.nan, dtype=np.float32)
        cpu_matrix.embed(matrix, token, out)
        torch.testing.assert_close(torch.from_numpy(out), weight[token], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_packing_keeps_the_size(kind: str) -> None:
    raw, _ = blocks_of(kind, 64, 128)
    packed = pack(raw, kind, 128)
    assert packed.nbytes == raw.nbytes
    assert packed.ctypes.data % 64 == 0


def test_quantised_activations_match_their_twin() -> None:
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(2)) * 10
    x[1, 32:64] = 0
    room, matrix = room_for(x), matrix_row(0, cpu_state.Q8_0, 16, 96, 0)
    cpu_matrix.prepare(x.data_ptr(), matrix, 3, room.ctypes.data)
    quants, kept = room[: 2 * 3 * 96].view(np.int8), room[2 * 3 * 96 :].view(np.float32)
    digits: Any = quants.reshape(3, 3, 2, 32).astype(np.int32)  # [block, t, ...]
    assert np.abs(digits).max() <= 127
    expected, scales = reference.quantise(x)
    mine = 254 * digits[:, :, 0] + digits[:, :, 1]
    off = torch.from_numpy(mine).transpose(0, 1) - expected
    assert off.abs().max() <= 1  # a half may round either way
    kept = kept.reshape(3, 3, 4)  # [block, t, ...]
    torch.testing.assert_close(torch.from_numpy(kept[:, :, 0].T.copy()), scales)
    np.testing.assert_allclose(kept[:, :, 1], mine.sum(-1) * kept[:, :, 0], rtol=1e-6)
    np.testing.assert_array_equal(kept[:, :, 2:].copy().view(np.int32), -128 * digits.sum(-1))


def test_quantised_columns_lie_four_by_four() -> None:
    x, matrix = torch.randn(7, 64), matrix_row(0, cpu_state.Q4_1, 16, 64, 0)

    def quants(some: torch.Tensor) -> np.ndarray:
        room = room_for(some)
        cpu_matrix.prepare(some.data_ptr(), matrix, len(some), room.ctypes.data)
        return room[: 2 * some.numel()]

    np.testing.assert_array_equal(quants(x), np.concatenate([quants(x[:4]), quants(x[4:])]))
