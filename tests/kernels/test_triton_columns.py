"""Every stage of a pass of several tokens beside its PyTorch twin: poisoned, awkward shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from engine.models.base import Model
from engine.models.rope import rope_table
from engine.sampling import SamplingParams
from kernels import reference
from kernels.tuning import ColumnTile, Tile, Tuning, column_tile, power_of_two
from tests.kernels.triton_workspace import (
    CONFIGS,
    DEVICE,
    POSITIONS,
    assert_close,
    config,
    model_of,
    needs_triton,
    random,
)

if TYPE_CHECKING:
    from kernels.column_ops import ColumnKernels

pytestmark = needs_triton
LIMIT = 2e-6 if DEVICE.type == "cpu" else 1e-5  # float32 against float32: the order of summation
SPLITS, BLOCK_N = 2, 64  # the latter is what head sizes up to 64 get
WIDTHS = {"9 heads over 3": 4, "biases": 4, "normed heads": 2, "odd head size": 8}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program costs milliseconds interpreted."""
    from kernels import column_layers

    def tile(rows: int, columns: int, roomy: bool) -> ColumnTile:
        return ColumnTile(128, min(256, power_of_two(columns)), 4)

    monkeypatch.setattr(column_layers, "column_tile", tile)


@pytest.fixture(params=CONFIGS)
def kernels(request: pytest.FixtureRequest) -> Iterator[ColumnKernels]:
    yield kernels_of(model_of(CONFIGS[request.param]), WIDTHS[request.param])


def kernels_of(model: Model, width: int, position: int = 0) -> ColumnKernels:
    """Kernels with every buffer full of NaN, about to feed `position`."""
    from kernels.column_ops import ColumnKernels

    tile = Tile(64, 128, 4)
    tuning = Tuning(tile, tile, tile, tile, tile, SPLITS, 16, 4, 0, 1)
    made = ColumnKernels(model, tuning, widest=width, ngram=True)
    cache = model.new_cache()
    cache.token_ids = [0] * position
    made.bind(cache, 0, SamplingParams())
    for name in ("xs", "qkvs", "attendeds", "activateds", "parts_out", "parts_max", "parts_sum",
                 "all_logits"):  # fmt: skip
        getattr(made, name).fill_(float("nan"))
    return made


def test_products_of_every_stage(kernels: ColumnKernels) -> None:
    made, n = kernels, kernels.columns
    w, c = made.model.weights, made.model.config
    start = random(n, c.hidden)
    made.xs.copy_(start)
    made._qkvs(0, n)
    expected = reference.linear(reference.rms_norm(start, w.attn_norm[0], c.rms_eps), w.qkv[0])
    if w.qkv_bias is not None:
        expected = expected + w.qkv_bias[0]
    assert_close("qkv", expected, made.qkvs, LIMIT)
    made.attendeds.copy_(random(n, c.q_size, seed=1))
    made._outputs(0, n)
    x = start + reference.linear(made.attendeds, w.o[0])
    assert_close("output", x, made.xs, LIMIT)
    made._gates_ups(0, n)
    gate, up = reference.linear(
        reference.rms_norm(made.xs, w.mlp_norm[0], c.rms_eps), w.gate_up[0]
    ).chunk(2, dim=-1)
    assert_close("gate/up", reference.silu_multiply(gate, up), made.activateds, LIMIT)
    made._downs(0, n)
    x = x + reference.linear(made.activateds, w.down[0])
    assert_close("down", x, made.xs, LIMIT)
    made._heads(n)
    h = reference.rms_norm(made.xs, w.norm, c.rms_eps)
    assert_close("logits", reference.linear(h, w.lm_head), made.all_logits, LIMIT)


def test_bfloat16_weights_lose_nothing_of_the_activations() -> None:
    """Two halves of 8 bits each: a column comes out as alone, but for 2^-17."""
    model = model_of(config(hidden=96, heads=3, kv_heads=1, head_dim=32), torch.bfloat16)
    made = kernels_of(model, 4)
    made.attendeds.copy_(random(4, 96, seed=1))
    made.xs.zero_()
    made._outputs(0, 4)
    expected = reference.linear(made.attendeds, model.weights.o[0])
    assert_close("output", expected, made.xs, 2e-5)


# Before, at and after a block, a round of all splits, and the end of the cache in mid-pass.
EDGES = [0, 1, BLOCK_N - 1, BLOCK_N, BLOCK_N + 1, SPLITS * BLOCK_N - 1, SPLITS * BLOCK_N,
         SPLITS * BLOCK_N + 1, POSITIONS - 8, POSITIONS - 3, POSITIONS - 1]  # fmt: skip


@pytest.mark.parametrize("position", EDGES)
def test_attention_at_every_edge_of_the_context(position: int) -> None:
    check_attention(model_of(config()), 8, position)


@pytest.mark.parametrize("shape", [name for name in CONFIGS if name != "9 heads over 3"])
def test_attention_of_other_heads(shape: str) -> None:
    check_attention(model_of(CONFIGS[shape]), WIDTHS[shape], 37)


def test_attention_over_bfloat16() -> None:
    check_attention(model_of(config(), torch.bfloat16), 4, 70, close=2e-5)


def check_attention(model: Model, width: int, position: int, close: float = 1e-5) -> None:
    """One layer's attention of `width` random tokens after a random history, NaN beyond it."""
    c, w, made = model.config, model.weights, kernels_of(model, width, position)
    cache = model.new_cache()
    for tensor, seed in ((cache.k, 3), (cache.v, 4)):
        tensor.copy_(random(*tensor.shape, seed=seed))
        tensor[:, :, position:] = float("nan")
    made.settings[:2] = torch.tensor([cache.k.data_ptr(), cache.v.data_ptr()])
    made.qkvs.copy_(random(width, c.qkv_size, seed=5))
    made._attend(0, width)
    heads = made.qkvs.view(width, -1, c.head_dim).split((c.heads, c.kv_heads, c.kv_heads), dim=1)
    q, k, v = heads
    if w.q_norm is not None and w.k_norm is not None:
        q = reference.rms_norm(q, w.q_norm[0], c.rms_eps)
        k = reference.rms_norm(k, w.k_norm[0], c.rms_eps)
    fit = min(width, POSITIONS - position)
    cos, sin = (
        table[position : position + fit, : c.head_dim // 2]
        for table in rope_table(c, POSITIONS, torch.float32, DEVICE)
    )
    q, k = reference.rope(q[:fit], cos, sin), reference.rope(k[:fit], cos, sin)
    rounding = LIMIT if model.dtype == torch.float32 else 4e-3
    end = position + fit
    assert_close("keys appended", k.transpose(0, 1), cache.k[0, :, position:end], rounding)
    appended = cache.v[0, :, position:end]
    assert_close("values appended", v[:fit].transpose(0, 1), appended, rounding)
    assert cache.k[:, :, end:].isnan().all(), "wrote beyond the pass"
    group = c.heads // c.kv_heads
    for column in range(fit):
        seen = position + column + 1
        expected = torch.cat([
            reference.attention(
                q[column, head], cache.k[0, head // group, :seen], cache.v[0, head // group, :seen]
            )
            for head in range(c.heads)
        ])  # fmt: skip
        assert_close(f"column {column}", expected, made.attendeds[column], close)


@pytest.mark.parametrize("width", [3])
def test_a_pass_is_so_many_steps(width: int) -> None:
    """Logits of the columns against one-column steps over the same tokens."""
    model = model_of(config(hidden=64, intermediate=96, heads=3, kv_heads=1, head_dim=16, layers=2))
    made, cache = kernels_of(model, width), model.new_cache()
    tokens = [7, 300, 12, 5, 99, 7, 300, 12][: made.columns]
    made.begin(cache, tokens[0], SamplingParams())
    expected = []
    for token in tokens:
        made.bind(cache, token, SamplingParams())
        made.step()
        expected.append(made.logits.clone())
        cache.token_ids.append(token)
    cache.token_ids.clear()
    made.begin(cache, tokens[0], SamplingParams())
    made.drafts[1 : len(tokens)] = torch.tensor(tokens[1:], dtype=torch.int32)
    made.layers(made.columns)
    assert_close("logits", torch.stack(expected), made.all_logits, 1e-5)


def test_tiles_suit_tensor_cores_at_every_size() -> None:
    for rows, columns in ((3072, 2048), (128256, 4096), (2048, 8192), (960, 576), (64, 16)):
        for roomy in (False, True):
            tile = column_tile(rows, columns, roomy)
            assert tile.rows % 8 == 0 and tile.block_k // tile.warps >= 16
            assert tile.block_k & (tile.block_k - 1) == 0
