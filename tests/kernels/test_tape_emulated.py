"""The tape kernel's logic without a GPU: text, prompts in wide passes, ends, faults, schedules."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from engine import mailbox as mb
from engine.eager import EagerEngine
from engine.kv_cache import KVCache
from engine.models.base import ModelConfig
from engine.sampling import SamplingParams, sample
from kernels.stages import DOWN
from tests.kernels.tape_emulator import EmulatedTape, reason

pytestmark = pytest.mark.skipif(reason() is not None, reason=str(reason()))

ONE_KEY_HEAD = ModelConfig(
    family="qwen2", layers=2, hidden=96, intermediate=160, heads=6, kv_heads=1, head_dim=16,
    vocab=384, max_positions=700, rms_eps=1e-5, rope_theta=1e5, tied=True, qkv_bias=True,
)  # fmt: skip
CONFIGS = {
    "one key head": ONE_KEY_HEAD,
    "nine heads": dataclasses.replace(ONE_KEY_HEAD, hidden=288, intermediate=416, heads=9,
                                      kv_heads=3, head_dim=32, qkv_bias=False),
    "normed": dataclasses.replace(ONE_KEY_HEAD, layers=3, hidden=64, intermediate=96, heads=2,
                                  head_dim=128, qk_norm=True, qkv_bias=False, tied=False),
    "whole slots": dataclasses.replace(ONE_KEY_HEAD, layers=1, hidden=1024, intermediate=5120,
                                       heads=16, kv_heads=2, head_dim=64, qkv_bias=False),
}  # fmt: skip
# More words than threads, in a row as in a part of the down projection; some columns are left over.
LONG_ROWS = dataclasses.replace(ONE_KEY_HEAD, hidden=1056, intermediate=3200, heads=8, kv_heads=2)
LIMIT = 0.03  # relative: the eager engine rounds every activation to bfloat16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tape")


def prompt_of(config: ModelConfig, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, config.vocab, (count,), generator=generator).tolist()


def filled(eager: EagerEngine, ids: list[int], positions: int) -> KVCache:
    """A cache of NaN that holds `ids`."""
    cache = eager.model.new_cache(positions)
    cache.k.fill_(float("nan"))
    cache.v.fill_(float("nan"))
    if ids:
        eager.prefill(cache, ids)
    return cache


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("history", [0, 16, 100, 400])
def test_greedy_text_over_histories_of_many_tiles(folder: Path, name: str, history: int) -> None:
    """400 positions are 9 tiles for each of 3 blocks, which have room for 4."""
    tape = EmulatedTape(CONFIGS[name], folder)
    eager, ids = EagerEngine(tape.model), prompt_of(CONFIGS[name], history + 1)
    for seed in range(2 if history else 1):
        cache = filled(eager, ids[:history], history + 8)
        tokens, why = tape.run(cache, ids[history:], SamplingParams(max_tokens=2), seed=seed)
        assert len(tokens) == 2 and why == mb.LENGTH
        rows = eager.logits(filled(eager, ids[:history], history + 8), [ids[history], tokens[0]])
        assert error(tape.logits, rows[-1]) < LIMIT
        for row, token in zip(rows, tokens, strict=True):
            assert float(row.max() - row[token]) < 0.2


@pytest.mark.parametrize("name", ["one key head", "nine heads", "long rows"])
@pytest.mark.parametrize("history, count", [(0, 8), (5, 13), (400, 17)])
def test_prompts_in_passes_of_eight(folder: Path, name: str, history: int, count: int) -> None:
    config = CONFIGS.get(name, LONG_ROWS)
    tape = EmulatedTape(config, folder, width=8)
    eager, ids = EagerEngine(tape.model), prompt_of(config, history + count)
    cache = filled(eager, ids[:history], history + count)
    tokens, why = tape.run(cache, ids[history:], SamplingParams(), max_tokens=0)
    assert tokens == [] and why == mb.PREFILLED
    expected = filled(eager, ids, history + count)
    assert error(cache.k.float(), expected.k.float()) < LIMIT
    assert error(cache.v.float(), expected.v.float()) < LIMIT


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8},
        {"temperature": 1.0, "top_k": 20},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.2, "min_p": 0.05},
        {"repetition_penalty": 1.3},
        {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.1},
    ],
)
def test_the_draw_is_the_samplers(folder: Path, options: dict[str, float]) -> None:
    """From the kernel's own logits, so that rounding has no part in it."""
    tape = EmulatedTape(ONE_KEY_HEAD, folder)
    ids = prompt_of(ONE_KEY_HEAD, 20)
    for number in range(3):
        params = SamplingParams(**options, max_tokens=1, seed=number)  # type: ignore[arg-type]
        cache = filled(EagerEngine(tape.model), ids[:19], 30)
        tokens, _ = tape.run(cache, ids[19:], params)
        expected, logprob = sample(tape.logits, params, 20, ids)
        assert tokens == [expected]
        assert abs(float(tape.slots.view(torch.float64)[0, 2]) - logprob) < 1e-4


def test_how_a_reply_ends(folder: Path) -> None:
    tape = EmulatedTape(ONE_KEY_HEAD, folder)
    empty = filled(EagerEngine(tape.model), [], 40)
    tokens, why = tape.run(empty, [7], SamplingParams(max_tokens=6))
    assert len(tokens) == 6 and why == mb.LENGTH
    stops = SamplingParams(max_tokens=6, stop_ids=[383, tokens[2]])
    assert tape.run(empty, [7], stops) == (tokens[: tokens.index(tokens[2]) + 1], mb.EOS)
    small = filled(EagerEngine(tape.model), [], 3)
    assert tape.run(small, [7], SamplingParams(max_tokens=6)) == (tokens[:3], mb.CONTEXT)
    stopped, why = tape.run(empty, [7], SamplingParams(max_tokens=30), stop=True)
    assert 1 <= len(stopped) <= 2 and why == mb.STOPPED


def test_a_block_that_owes_the_others_something_is_told_by_stage(folder: Path) -> None:
    tape = EmulatedTape(ONE_KEY_HEAD, folder)
    cache, plan = filled(EagerEngine(tape.model), [], 20), tape.kernel.buffer("plan")
    slices, plan[0, 5] = int(plan[0, 5]), 0
    why = tape.run(cache, [7], SamplingParams(max_tokens=3), timeout_s=0.3)[1]
    assert why == mb.FAULTED and mb.unpack_fault(int(tape.words[mb.FAULT])) == (DOWN, 0, 0)
    plan[0, 5] = slices
    assert tape.run(cache, [7], SamplingParams(max_tokens=3))[1] == mb.LENGTH
