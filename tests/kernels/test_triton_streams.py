"""The stages of a resident program beside their PyTorch twins: awkward shapes, poisoned outputs."""

from __future__ import annotations

import pytest
import torch

from engine.models.rope import rope_table
from kernels import reference
from kernels.tuning import power_of_two
from tests.kernels.triton_workspace import DEVICE, assert_close, config, needs_triton, random

pytestmark = needs_triton
EPS, LIMIT = 1e-5, 2e-6  # float32 against float32: the order of summation
# Rows, columns, rows and columns of a tile, programs: one step and several, an odd number of
# them, rows and columns that tiles do not divide, a single row, programs without rows.
SHAPES = [
    (64, 64, 8, 64, 3),
    (50, 96, 4, 128, 2),
    (24, 160, 8, 32, 2),
    (26, 96, 4, 32, 3),
    (9, 136, 1, 256, 4),
    (6, 40, 4, 16, 5),
]


def run(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the kernel wrote, what its twin computes) of a random stage."""
    from kernels import streams
    from tests.kernels.stream_kernels import stream_kernel

    n, k, rows, block_k, programs = shape
    code = {"qkv": streams.PROJECT, "residual": streams.RESIDUAL, "gated": streams.GATED}[kind]
    w = random(n * (2 if kind == "gated" else 1), k, seed=1).to(dtype)
    x, gain, bias = random(k, seed=2), random(k, seed=3).to(dtype), random(n, seed=4).to(dtype)
    out = random(n, seed=5) if kind == "residual" else torch.full((n,), float("nan"), device=DEVICE)
    h = reference.rms_norm(x, gain, EPS).float()
    if kind == "qkv":
        expected = reference.linear(h, w) + bias.float()
    elif kind == "residual":
        expected = out + reference.linear(x, w)
    else:
        expected = reference.silu_multiply(*reference.linear(h, w).chunk(2))
    stream_kernel[(programs,)](
        x, gain, w, bias, out, EPS=EPS, N=n, K=k, ROWS=rows, BLOCK_K=block_k, KIND=code.value,
        BIAS=int(kind == "qkv"), GRID=programs,
    )  # fmt: skip
    return out, expected


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["qkv", "residual", "gated"])
def test_stage(kind: str, shape: tuple[int, ...]) -> None:
    if kind == "gated" and shape[2] == 1:
        pytest.skip("a pair has two rows")
    out, expected = run(kind, shape, torch.float32)
    assert_close(kind, expected, out, LIMIT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["qkv", "residual", "gated"])
def test_words_of_two_weights(kind: str, dtype: torch.dtype) -> None:
    for shape in SHAPES[:3]:
        out, expected = run(kind, shape, dtype)
        assert_close(kind, expected, out, 1e-2 if kind != "residual" else LIMIT)


SPLITS, BLOCK_N, POSITIONS = 4, 16, 160
EDGES = [0, 1, BLOCK_N - 1, BLOCK_N, BLOCK_N + 1, SPLITS * BLOCK_N, SPLITS * BLOCK_N + 1,
         POSITIONS - 1]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("position", EDGES)
def test_attention_parts(position: int, dtype: torch.dtype) -> None:
    check_parts(position, dtype, heads=6, kv_heads=2, d=32)


@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(2, 2, 16), (10, 1, 40), (24, 2, 16)])
def test_attention_parts_of_other_heads(heads: int, kv_heads: int, d: int) -> None:
    check_parts(37, torch.bfloat16, heads, kv_heads, d)


def check_parts(position: int, dtype: torch.dtype, heads: int, kv_heads: int, d: int) -> None:
    """One layer's parts of a random token after a random history, garbage beyond it."""
    from tests.kernels.stream_kernels import part_kernel

    group = heads // kv_heads
    cache = [random(kv_heads, POSITIONS, d, seed=seed).to(dtype) for seed in (3, 4)]
    for tensor in cache:
        tensor[:, position:] = float("nan")
    qkv = random((heads + 2 * kv_heads) * d, seed=5)
    shape = config(heads=heads, kv_heads=kv_heads, head_dim=d)
    cos, sin = (
        table[position, : d // 2].contiguous()
        for table in rope_table(shape, POSITIONS, torch.float32, DEVICE)
    )
    out = torch.full((kv_heads, SPLITS, group, d), float("nan"), device=DEVICE)
    top, total = out[..., 0].clone(), out[..., 0].clone()
    part_kernel[(kv_heads * SPLITS,)](
        qkv, qkv, cos, sin, *cache, position, out, top, total, HEADS=heads, KV_HEADS=kv_heads,
        D=d, BLOCK_D=max(16, power_of_two(d)), BLOCK_G=max(16, 2 * power_of_two(group)),
        BLOCK_N=BLOCK_N, SPLITS=SPLITS, POSITIONS=POSITIONS, SCALE=d**-0.5,
        DEVICE=DEVICE.type == "cuda",
    )  # fmt: skip
    weight = torch.exp2(top - top.amax(1, keepdim=True))
    attended = (out * weight[..., None]).sum(1) / (total * weight).sum(1)[..., None]
    q, k, v = qkv.view(-1, d).split((heads, kv_heads, kv_heads))
    q, k = (reference.rope(t[None], cos[None], sin[None])[0] for t in (q, k))
    limit = LIMIT if dtype is torch.float32 else 1e-2
    assert_close("key appended", k, cache[0][:, position], limit)
    assert_close("value appended", v, cache[1][:, position], limit)
    assert cache[0][:, position + 1 :].isnan().all(), "wrote beyond the new position"
    expected = torch.stack([
        reference.attention(q[head], *(t[head // group, : position + 1].float() for t in cache))
        for head in range(heads)
    ])  # fmt: skip
    # Queries and weights have twice the cache's digits, so that only sums are rounded.
    assert_close("attended", expected, attended.flatten(0, 1), 1e-4)
