"""Float kernels against their PyTorch twins: tails, single elements, both dtypes."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from kernels import cpu_elements, cpu_layers, cpu_matrix, cpu_vector, reference
from kernels.cpu_state import BF16, CHUNK, F32
from tests.kernels.close import assert_close
from tests.kernels.cpu_workspace import matrix_row, multiply

DTYPES = {torch.float32: F32, torch.bfloat16: BF16}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@cache
def compiled(intrinsic: Any) -> Any:
    """An intrinsic as a function of its addresses and sizes."""
    count = intrinsic._defn.__code__.co_argcount - 1
    names = ", ".join("abcdefgh"[:count])
    scope: dict[str, Any] = {"intrinsic": intrinsic}
    exec(f"def call({names}): return intrinsic({names})", scope)
    return njit(scope["call"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 45), (16, 64), (33, 15), (5, 576)])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 8])
def test_linear(dtype: torch.dtype, rows: int, columns: int, tokens: int) -> None:
    weight, x = normal(rows + 1, columns).to(dtype), normal(tokens, columns, seed=1)
    weight[-1] = math.nan  # what lies behind the matrix must not matter
    stride = columns * weight.element_size()
    matrix = matrix_row(weight.data_ptr(), DTYPES[dtype], rows, columns, stride)
    assert_close("linear", reference.linear(x, weight[:-1]), multiply(matrix, x), 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(7, 45), (33, 64)])
def test_the_width_of_a_pass_changes_no_bit(dtype: torch.dtype, rows: int, columns: int) -> None:
    weight, x = normal(rows, columns).to(dtype), normal(8, columns, seed=1)
    stride = columns * weight.element_size()
    matrix = matrix_row(weight.data_ptr(), DTYPES[dtype], rows, columns, stride)
    one_by_one = torch.cat([multiply(matrix, row[None].clone()) for row in x])
    for width in range(1, CHUNK + 1):
        assert torch.equal(multiply(matrix, x[:width].clone()), one_by_one[:width])


@pytest.mark.parametrize("n", [1, 15, 16, 17, 576])
def test_rms_norm(n: int) -> None:
    x, weight = normal(4, n), normal(n, seed=1)
    out = np.full(4 * n, np.nan, dtype=np.float32)
    cpu_layers.normalise(x.numpy(), weight.numpy(), np.float32(1e-5), 4, out)
    expected = reference.rms_norm(x, weight, 1e-5)
    assert_close("rms_norm", expected, torch.from_numpy(out.reshape(4, n)), 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 15, 64, 100])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 70])
def test_weighted_sum(dtype: torch.dtype, n: int, rows: int) -> None:
    weights, values = normal(CHUNK, rows), normal(rows + 1, n, seed=1).to(dtype)
    values[-1] = math.nan  # noise past the context
    expected, bf16 = weights @ values[:-1].float(), dtype == torch.bfloat16

    def summed(width: int, first: int = 0) -> torch.Tensor:
        out, shares = torch.zeros(width, n), weights[first].data_ptr()
        where = values.data_ptr(), rows, n, out.data_ptr(), n
        cpu_matrix.weighted_sum(bf16, width, shares, rows, *where)
        return out

    one_by_one = torch.cat([summed(1, t) for t in range(CHUNK)])
    assert_close("weighted_sum", expected, one_by_one, 1e-6)
    for width in range(1, CHUNK + 1):
        assert torch.equal(summed(width), one_by_one[:width]), "the width changes no bit"


def test_exponentials() -> None:
    x = torch.cat([torch.linspace(-87, 88, 4096), torch.tensor([0.0, -0.0, -1e-8, 1e-8] * 4)])
    out = torch.empty_like(x)
    one = np.float32(1)
    shift = np.float32(0)
    compiled(cpu_vector.exp_sum)(x.data_ptr(), out.data_ptr(), len(x), one, shift)
    assert ((out.double() / x.double().exp()) - 1).abs().max() < 2e-7
    half = 2048  # up to here their sum is a float32 too
    total = compiled(cpu_vector.exp_sum)(x.data_ptr(), out.data_ptr(), half, one, shift)
    assert total == pytest.approx(float(out[:half].double().sum()), rel=1e-5)


def test_exponentials_saturate() -> None:
    x = torch.tensor([-math.inf, -1e30] * 8 + [1e30, math.inf] * 8)
    out = torch.empty_like(x)
    one = np.float32(1)
    compiled(cpu_vector.exp_sum)(x.data_ptr(), out.data_ptr(), len(x), one, np.float32(0))
    assert out.isfinite().all()
    assert out[:16].max() < 1e-37 and out[16:].min() > 1e38


def test_largest() -> None:
    x = normal(4096) - 100
    assert compiled(cpu_vector.largest)(x.data_ptr(), len(x)) == x.max()
    x[:] = -math.inf
    assert compiled(cpu_vector.largest)(x.data_ptr(), len(x)) == -math.inf


@pytest.mark.parametrize("n", [1, 16, 33])
def test_silu_multiply(n: int) -> None:
    gate, up, out = normal(n) * 20, normal(n, seed=1), torch.full((n,), math.nan)
    compiled(cpu_elements.silu_multiply)(gate.data_ptr(), up.data_ptr(), out.data_ptr(), n)
    assert_close("silu_multiply", reference.silu_multiply(gate, up), out, 1e-6)


@pytest.mark.parametrize("half", [1, 7, 32, 50])
def test_rope(half: int) -> None:
    heads, angles = normal(3, 1, 2 * half), normal(3, half, seed=1)
    cos, sin = angles.cos(), angles.sin()
    out, expected = heads.clone(), reference.rope(heads, cos, sin)
    for head, c, s in zip(out, cos, sin, strict=True):  # in place
        where = head.data_ptr(), c.data_ptr(), s.data_ptr(), half, head.data_ptr()
        compiled(cpu_elements.rotate_pairs)(*where)
    assert_close("rope", expected, out, 1e-6)


def test_the_first_of_several_is_found() -> None:
    x = torch.arange(64.0) % 32
    find = compiled(cpu_vector.first_equal)
    assert [find(x.data_ptr(), 64, np.float32(value)) for value in (0, 5, 31)] == [0, 5, 31]
    assert find(x[16:].data_ptr(), 48, np.float32(3)) == 19
    assert find(x.data_ptr(), 64, np.float32(99)) == 0


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    bits = torch.randint(-(2**31), 2**31, (20_000,), generator=torch.Generator().manual_seed(0))
    x = bits.to(torch.int32).view(torch.float32)
    x = torch.cat([x, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.00390625] * 3)])
    out = torch.empty(len(x), dtype=torch.bfloat16)

    compiled(cpu_elements.store_row_bf16)(x.data_ptr(), len(x), out.data_ptr())
    torch.testing.assert_close(out, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
