"""Speculative decoding of `triton` and `graph` on a GPU, small and at full size.

`timeout 200 python -m pytest -m gpu tests/engine/test_gpu_speculation.py -x -q`; what needs no GPU
is in test_triton_speculation.py. `python -m benchmarks.captured_pass` tells what a pass costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from benchmarks.shapes import random_model
from engine.base import Token
from engine.graph import GraphEngine
from engine.launches import count_launches
from engine.models.base import Model
from engine.sampling import SamplingParams, sample
from engine.speculation import Speculation
from engine.triton_engine import TritonEngine
from tests.engine.conformance import SLACK, lag
from tests.kernels.triton_workspace import config, model_of

pytestmark = pytest.mark.gpu
PROMPT = [5, 99, 7, 300, 12] * 4
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
]


@pytest.fixture(scope="module")
def small() -> Model:
    return model_of(config(layers=2, vocab=2500), torch.bfloat16)


@pytest.fixture(scope="module")
def large() -> Model:
    return random_model("llama-3.2-1b", "cuda")


def reply(engine: TritonEngine, prompt: Sequence[int], **values: Any) -> tuple[list[Token], Any]:
    run = engine.decode(engine.model.new_cache(1024), prompt, SamplingParams(**values))
    return list(run), run


def judge(plain: TritonEngine, prompt: Sequence[int], tokens: list[Token], **values: Any) -> None:
    """Each token is what the engine without drafts draws from the same text, ties apart."""
    params, ids = SamplingParams(**values), [token.id for token in tokens]
    whole = [*prompt, *ids]
    cache = plain.model.new_cache(1024)
    plain.prefill(cache, prompt[:-1])
    rows = plain.logits(cache, whole[len(prompt) - 1 : -1])
    # Drafts move the last bits alone: far less than what rounding to bfloat16 is allowed.
    slack = SLACK[torch.bfloat16] / 20
    for at, (row, token) in enumerate(zip(rows.cpu(), tokens, strict=True)):
        position = len(prompt) + at
        if token.id != sample(row, params, position, whole[:position])[0]:
            assert lag(row, token.id, params, position) <= slack, f"token {at} of {ids}"
        assert abs(token.logprob - row.log_softmax(-1)[token.id].item()) <= slack


@pytest.mark.parametrize("values", SAMPLERS, ids=str)
@pytest.mark.parametrize("made", [TritonEngine, GraphEngine])
@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_small_replies_are_those_without_drafts(
    small: Model, made: type[TritonEngine], method: Any, values: dict[str, Any]
) -> None:
    draft_model = small if method == "draft" else None
    engine = made(small, speculation=Speculation(method, 8, draft_model))
    tokens, run = reply(engine, PROMPT, max_tokens=100, **values)
    judge(TritonEngine(small), PROMPT, tokens, **values)
    assert len(tokens) == 100 and run.finish_reason == "length"
    if draft_model is not None:  # it drafts from the same noise: wrong only where logits tie
        assert run.drafts.accepted >= 0.9 * run.drafts.drafted > 0
    times = [run.start_ns, *(token.time_ns for token in tokens)]
    assert times == sorted(times)


def test_graph_and_single_launches_agree_to_the_bit(small: Model) -> None:
    engines = [made(small, speculation=Speculation("ngram", 4)) for made in (TritonEngine,)]
    engines.append(GraphEngine(small, speculation=Speculation("ngram", 4)))
    logits = []
    for engine in engines:
        cache, params = small.new_cache(), SamplingParams()
        engine.prefill(cache, PROMPT[:-1])
        assert engine._passes is not None
        engine._passes.kernels.begin(cache, PROMPT[-1], params)
        engine._passes.launch(cache, 4, engine.filters(params))
        torch.cuda.synchronize()
        logits.append(engine._passes.kernels.all_logits.clone())
    assert torch.equal(*logits)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_columns_are_steps_at_full_size(large: Model, width: int) -> None:
    engine = GraphEngine(large, speculation=Speculation("ngram", 8))
    assert engine._passes is not None
    kernels, prompt = engine._passes.kernels, list(range(1000, 1600))
    cache, params = large.new_cache(1024), SamplingParams()
    engine.prefill(cache, prompt)
    tokens = [7, 300, 12, 5, 99, 7, 300, 12][:width]
    kernels.begin(cache, tokens[0], params)
    kernels.drafts[1:width] = torch.tensor(tokens[1:], dtype=torch.int32)
    kernels.layers(width)
    columns = kernels.all_logits[:width].clone()
    steps = engine.logits(cache, tokens)
    assert ((columns - steps).norm() / steps.norm()).item() < 2e-3


@pytest.mark.parametrize("values", SAMPLERS[:2], ids=str)
def test_full_size_replies_are_those_without_drafts(large: Model, values: dict[str, Any]) -> None:
    engine = GraphEngine(large, speculation=Speculation("ngram", 8))
    prompt = [1000 + at % 40 for at in range(600)]
    tokens, run = reply(engine, prompt, max_tokens=128, **values)
    judge(GraphEngine(large), prompt, tokens, **values)
    assert len(tokens) == 128 and run.drafts is not None


def test_counted_launches_are_those_the_driver_sees(small: Model) -> None:
    engine = TritonEngine(small, speculation=Speculation("draft", 4, small))
    passes = engine._passes
    assert passes is not None
    filters = engine.filters(SamplingParams())
    launched = count_launches(lambda: passes.launch_kernels(4, filters), small.device)
    assert launched == engine.launches_of((4, filters))
