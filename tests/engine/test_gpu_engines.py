"""The engines `triton` and `graph` on a GPU; what needs none is in test_triton_engine.py."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from engine.errors import UnpausedError
from engine.gpu import gpu_reason, told_plainly, wait_for_word
from engine.graph import GraphEngine, StrictGraph
from engine.launches import count_launches
from engine.registry import ENGINES
from engine.sampling import SamplingParams
from engine.triton_engine import TritonEngine
from tests.kernels.triton_workspace import config, model_of

PROMPT = [5, 99, 7, 300, 12]
SHAPE = config(layers=2, vocab=2500)


@pytest.fixture(scope="module")
def engines() -> list[TritonEngine]:
    model = model_of(SHAPE, torch.bfloat16)
    return [TritonEngine(model), GraphEngine(model)]


def reply(engine: TritonEngine, **values: Any) -> tuple[list[tuple[int, float]], Any]:
    run = engine.decode(engine.model.new_cache(), PROMPT, SamplingParams(**values))
    return [(token.id, token.logprob) for token in run], run


@pytest.mark.gpu
@pytest.mark.parametrize(
    "values",
    [{}, {"temperature": 0.8, "seed": 1}, {"temperature": 0.8, "top_p": 0.9},
     {"temperature": 0.9, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.2}],
    ids=str,
)  # fmt: skip
def test_graph_and_single_launches_agree_to_the_bit(
    engines: list[TritonEngine], values: dict[str, Any]
) -> None:
    single, _ = reply(engines[0], max_tokens=100, **values)
    for _ in range(3):
        captured, _ = reply(engines[1], max_tokens=100, **values)
        assert captured == single


@pytest.mark.gpu
def test_times_are_the_devices_and_in_order(engines: list[TritonEngine]) -> None:
    for engine in engines:
        run = engine.decode(engine.model.new_cache(), PROMPT, SamplingParams(max_tokens=20))
        times = [run.start_ns, *(token.time_ns for token in run)]
        assert times == sorted(times)
        assert run.prefill_end_ns is not None and times[0] <= run.prefill_end_ns <= times[1]


@pytest.mark.gpu
def test_counted_launches_are_those_the_driver_sees(engines: list[TritonEngine]) -> None:
    engine = engines[0]
    expected = reply(engine, max_tokens=1)[1].launches

    def one_step() -> None:
        engine.kernels.step()

    assert count_launches(one_step, engine.model.device) == expected


@pytest.mark.gpu
def test_a_changed_shape_is_refused_with_the_remedy() -> None:
    buffer = torch.zeros(4, device="cuda")

    def work() -> None:
        buffer.add_(1)

    graph = StrictGraph(work, (4, "float32"), "build a new engine")
    graph.replay((4, "float32"))
    torch.cuda.synchronize()
    assert buffer.tolist() == [1.0] * 4
    with pytest.raises(UnpausedError, match=r"\(8, 'float32'\): build a new engine"):
        graph.replay((8, "float32"))


@pytest.mark.gpu
def test_out_of_memory_names_shape_need_and_free(engines: list[TritonEngine]) -> None:
    with (
        pytest.raises(UnpausedError, match=r"needs 5 MB .* hidden 576.* MB are free"),
        told_plainly("graph", SHAPE, 5_000_000),
    ):
        torch.empty(2**50, device="cuda")


@pytest.mark.gpu
def test_many_replies_leave_no_memory_behind(engines: list[TritonEngine]) -> None:
    for engine in engines:
        reply(engine, max_tokens=3)
        before = torch.cuda.memory_allocated()
        for seed in range(50):
            reply(engine, max_tokens=3, temperature=1.0, seed=seed)
        assert torch.cuda.memory_allocated() <= before


def test_a_silent_device_is_given_up_on() -> None:
    start = time.monotonic()
    with pytest.raises(UnpausedError, match="no answer for 0 s: a test"):
        wait_for_word(torch.zeros(1, dtype=torch.int64), 1, 0.05, "a test")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("name", ["triton", "graph"])
def test_listed_with_the_reason_where_it_cannot_run(name: str) -> None:
    reason = ENGINES[name].unavailable()
    assert reason == gpu_reason()
    if not torch.cuda.is_available():
        assert reason == "there is no NVIDIA GPU that this torch can use"
        with pytest.raises(UnpausedError, match=f"engine {name} is unavailable: there is no"):
            ENGINES[name].build(model_of(SHAPE))


class OutOfResources(Exception):
    """As Triton's own: what it raises when a kernel asks for more than an SM has."""


def test_too_little_shared_memory_is_one_line_with_the_shape() -> None:
    with pytest.raises(UnpausedError) as told, told_plainly("graph", SHAPE, 0):
        raise OutOfResources("out of resource: shared memory, Required: 270336, limit: 232448")
    line = str(told.value)
    assert "\n" not in line and "shared memory" in line and f"hidden {SHAPE.hidden}" in line
