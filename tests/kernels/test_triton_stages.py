"""Every Triton stage beside its PyTorch twin, with outputs poisoned and awkward shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from engine.models.base import Model
from engine.models.rope import rope_table
from engine.sampling import SamplingParams
from kernels import reference
from kernels.tuning import Tile, Tuning, power_of_two
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
    from kernels.ops import StepKernels

pytestmark = needs_triton
LIMIT = 2e-6  # float32 against float32: the order of summation
SPLITS, BLOCK_N = 4, 16


def tuning(model: Model, block_k: int = 128) -> Tuning:
    """Few programs, since each costs milliseconds interpreted; several tiles along K."""
    tile = Tile(64, min(block_k, power_of_two(model.config.hidden)), 4)
    return Tuning(tile, tile, tile, tile, tile, SPLITS, BLOCK_N, 4, 0, 1)


def kernels_of(model: Model, position: int = 0, block_k: int = 128) -> StepKernels:
    """Kernels with every buffer full of NaN, about to feed `position`."""
    from kernels.ops import StepKernels

    made = StepKernels(model, tuning(model, block_k))
    cache = model.new_cache()
    cache.token_ids = [0] * position
    made.bind(cache, 0, SamplingParams())
    for name in ("x", "qkv", "attended", "activated", "part_out", "part_max", "part_sum", "logits"):
        getattr(made, name).fill_(float("nan"))
    return made


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    yield model_of(CONFIGS[request.param])


@pytest.mark.parametrize("block_k", [64, 1024])
def test_norm_and_qkv(model: Model, block_k: int) -> None:
    w, c = model.weights, model.config
    made = kernels_of(model, block_k=block_k)
    made.x.copy_(random(c.hidden))
    made._qkv(0)
    expected = reference.linear(reference.rms_norm(made.x, w.attn_norm[0], c.rms_eps), w.qkv[0])
    if w.qkv_bias is not None:
        expected = expected + w.qkv_bias[0]
    assert_close("qkv", expected, made.qkv, LIMIT)


def test_output_and_down_projections_add_to_the_residual(model: Model) -> None:
    w, c = model.weights, model.config
    made = kernels_of(model)
    start = random(c.hidden)
    made.x.copy_(start)
    made.attended.copy_(random(c.q_size, seed=1))
    made._output(0)
    expected = start + reference.linear(made.attended, w.o[0])
    assert_close("output", expected, made.x, LIMIT)
    made.activated.copy_(random(c.intermediate, seed=2))
    made._down(0)
    expected = expected + reference.linear(made.activated, w.down[0])
    assert_close("down", expected, made.x, LIMIT)


def test_gate_up_and_silu(model: Model) -> None:
    w, c = model.weights, model.config
    made = kernels_of(model)
    made.x.copy_(random(c.hidden))
    made._gate_up(0)
    h = reference.rms_norm(made.x, w.mlp_norm[0], c.rms_eps)
    gate, up = reference.linear(h, w.gate_up[0]).chunk(2)
    assert_close("gate/up", reference.silu_multiply(gate, up), made.activated, LIMIT)


def test_head(model: Model) -> None:
    w, c = model.weights, model.config
    made = kernels_of(model)
    made.x.copy_(random(c.hidden))
    made._head()
    expected = reference.linear(reference.rms_norm(made.x, w.norm, c.rms_eps), w.lm_head)
    assert_close("logits", expected, made.logits, LIMIT)
    assert made.best_id[made.best.argmax()] == expected.argmax()


def test_head_whose_last_program_has_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import ops

    monkeypatch.setattr(ops, "_HEAD_PROGRAMS", 2)  # 192 rows in three tiles, then 128
    model = model_of(config())
    made = kernels_of(model)
    assert (made.segment, made.heads) == (192, 2)
    made.x.copy_(random(model.config.hidden))
    made._head()
    h = reference.rms_norm(made.x, model.weights.norm, model.config.rms_eps)
    assert_close("logits", reference.linear(h, model.weights.lm_head), made.logits, LIMIT)


# Before, at and after a block, a round of all splits, and the end of the cache.
EDGES = [0, 1, BLOCK_N - 1, BLOCK_N, BLOCK_N + 1, SPLITS * BLOCK_N - 1, SPLITS * BLOCK_N,
         SPLITS * BLOCK_N + 1, POSITIONS - 1]  # fmt: skip


@pytest.mark.parametrize("position", EDGES)
def test_attention_at_every_edge_of_the_context(position: int) -> None:
    check_attention(model_of(config()), position)


@pytest.mark.parametrize("shape", [name for name in CONFIGS if name != "9 heads over 3"])
def test_attention_of_other_heads(shape: str) -> None:
    check_attention(model_of(CONFIGS[shape]), 37)


def check_attention(model: Model, position: int) -> None:
    """One layer's attention of a random token after a random history, garbage beyond it."""
    c, made = model.config, kernels_of(model, position)
    cache = model.new_cache()
    for tensor, seed in ((cache.k, 3), (cache.v, 4)):
        tensor.copy_(random(*tensor.shape, seed=seed))
        tensor[:, :, position:] = float("nan")
    made.settings[:2] = torch.tensor([cache.k.data_ptr(), cache.v.data_ptr()])
    made.qkv.copy_(random(c.qkv_size, seed=5))
    made._attention(0)
    q, k, v = made.qkv.view(-1, c.head_dim).split((c.heads, c.kv_heads, c.kv_heads))
    w = model.weights
    if w.q_norm is not None and w.k_norm is not None:
        q = reference.rms_norm(q, w.q_norm[0], c.rms_eps)
        k = reference.rms_norm(k, w.k_norm[0], c.rms_eps)
    cos, sin = (
        table[position : position + 1, : c.head_dim // 2]
        for table in rope_table(c, POSITIONS, torch.float32, DEVICE)
    )
    q, k = reference.rope(q[None], cos, sin)[0], reference.rope(k[None], cos, sin)[0]
    assert_close("key appended", k, cache.k[0, :, position], LIMIT)
    assert_close("value appended", v, cache.v[0, :, position], LIMIT)
    assert cache.k[:, :, position + 1 :].isnan().all(), "wrote beyond the new position"
    group = c.heads // c.kv_heads
    expected = torch.cat([
        reference.attention(
            q[head],
            cache.k[0, head // group, : position + 1],
            cache.v[0, head // group, : position + 1],
        )
        for head in range(c.heads)
    ])  # fmt: skip
    assert_close("attended", expected, made.attended, 1e-5)
    assert not made.arrived.any(), "the counters are ready for the next layer"


def test_two_runs_of_a_step_agree_to_the_bit() -> None:
    model = model_of(config(layers=2))
    logits = []
    for _ in range(2):
        made, cache = kernels_of(model), model.new_cache()  # the device knows only its address
        made.bind(cache, 7, SamplingParams())
        made.step()
        logits.append(made.logits.clone())
    assert torch.equal(*logits)
