"""Gaps from kernel records, bars from anatomies, and the CPU engine's own stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import anatomy_parts as parts
from benchmarks.anatomy import Span, anatomy, counted_intermediates, fused_intermediates, gaps
from benchmarks.anatomy_parts import anatomy_parts, overhead_removed
from benchmarks.results import Entry
from benchmarks.timing import EngineSide
from engine import cpu_stages
from engine.anatomy import SelfMeasuring, StageTime
from engine.base import Token
from engine.cpu import PersistentCpuEngine
from engine.cpu_stages import Step
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.sampling import SamplingParams
from kernels import stages
from tests.engine.tiny import random_ids

COPY = "Memcpy DtoH (Device -> Pinned)"


def test_gaps_are_told_apart_by_what_came_before() -> None:
    spans = [Span(0, 10, "a"), Span(12, 20, COPY), Span(50, 60, "b"), Span(60, 65, "c")]
    assert gaps(spans) == {"busy_us": 33, "launch_gap_us": 2, "host_gap_us": 30}


def test_overlapping_kernels_are_busy_once() -> None:
    spans = [Span(0, 10, "a"), Span(5, 12, "b"), Span(6, 8, "inside"), Span(13, 14, "c")]
    assert gaps(spans) == {"busy_us": 13, "launch_gap_us": 1, "host_gap_us": 0}


def entry_of(anatomies: dict[str, Any], launches: dict[str, float] | None = None) -> Entry:
    """Engines of 100 us a token, of which 40 us are weights and 10 us keys and values."""
    figures = {"tpot_p50_ms": 0.1, "floor_us": {"weights_us": 40.0, "kv_us": 10.0}}
    counts = launches or {}
    return {
        "read_ceiling_bytes_per_s": 1e9,
        "engines": {n: {**figures, "launches_per_token": counts.get(n, 80.0)} for n in anatomies},
        "anatomy": anatomies,
    }


def test_a_launched_bar_takes_its_sum_from_the_clock_and_its_gaps_from_the_profile() -> None:
    profiled = {"method": "m", "busy_us": 70.0, "launch_gap_us": 100.0, "host_gap_us": 50.0,
                "intermediate_bytes": 5000}  # fmt: skip
    bar = anatomy_parts(entry_of({"eager": profiled}))["eager"]
    found = dict(bar.parts)
    assert found[parts.LAUNCHES] == pytest.approx(20) and found[parts.WAITING] == pytest.approx(10)
    assert found[parts.INTERMEDIATES] == pytest.approx(5)
    assert found[parts.KERNELS] == pytest.approx(15)
    assert sum(found.values()) == pytest.approx(bar.total_us) and bar.overhead_us == 50


def test_kernels_that_profiling_stretched_past_the_token_are_said() -> None:
    profiled = {"method": "m", "busy_us": 120.0, "launch_gap_us": 30.0, "host_gap_us": 0.0}
    bar = anatomy_parts(entry_of({"graph": profiled}))["graph"]
    assert dict(bar.parts)[parts.LAUNCHES] == pytest.approx(20) and "120 us" in bar.note
    assert sum(us for _, us in bar.parts) == pytest.approx(100)


def test_a_resident_bar_divides_by_the_engines_own_waiting() -> None:
    told = {"method": "m", "token_us": 120.0, "stages": [
        {"stage": "norm + QKV", "work_us": 80.0, "wait_us": 10.0},
        {"stage": "sample", "work_us": 10.0, "wait_us": 20.0},
    ]}  # fmt: skip
    bar = anatomy_parts(entry_of({"persistent": told}))["persistent"]
    found = dict(bar.parts)
    assert found[parts.WAITING] == pytest.approx(25) and found[parts.KERNELS] == pytest.approx(25)
    assert sum(found.values()) == pytest.approx(100)


def test_without_counters_the_bar_says_so_in_words() -> None:
    bar = anatomy_parts(entry_of({"tape": {"reason": "it gives no counters"}}))["tape"]
    assert dict(bar.parts)[parts.UNDIVIDED] == pytest.approx(50)
    assert bar.note == "it gives no counters"


def test_overhead_removed_compares_resident_engines_with_launched_ones() -> None:
    entry = entry_of({"eager": {}, "persistent": {}}, {"persistent": 0.01})
    entry["engines"]["persistent"]["tpot_p50_ms"] = 0.06  # 10 us above the floor against 50
    assert overhead_removed(entry) == {"persistent": {"eager": 0.8}}


def test_every_bar_of_a_real_run_adds_up(entry: Entry) -> None:
    for bar in anatomy_parts(entry).values():
        assert sum(us for _, us in bar.parts) == pytest.approx(bar.total_us)
        assert all(us > 0 for _, us in bar.parts) and bar.note


def test_eager_hands_on_more_through_memory_than_fused_stages(model: Model) -> None:
    counted = counted_intermediates(EagerEngine(model))
    assert counted > fused_intermediates(model.config) > 4 * model.config.vocab


@pytest.fixture
def engine(model: Model) -> Iterator[PersistentCpuEngine]:
    made = PersistentCpuEngine(model)
    yield made
    made.close()


def test_the_step_lists_the_stages_in_the_kernels_order(engine: PersistentCpuEngine) -> None:
    step = Step.of(engine.resident.shared)
    layers = engine.model.config.layers
    assert len(step.order) == 6 * layers + 3
    assert [stage for stage, _ in step.order[:7]] == list(range(stages.DOWN + 1))
    assert [stage for stage, _ in step.order[-2:]] == [stages.HEAD, stages.SAMPLE]


def test_threads_wait_only_when_every_item_is_handed_out() -> None:
    step = Step([(stages.QKV, 12), (stages.SAMPLE, 1)])
    assert step.waiting(1, 5, 3, 2) == (stages.QKV, 0)
    assert step.waiting(1, 12, 11, 2) == (stages.QKV, 1)
    assert step.waiting(2, 1, 0, 4) == (stages.SAMPLE, 3)
    assert step.waiting(3, 12, 10, 2) == (stages.QKV, 0)  # the next token


def test_the_cpu_engine_tells_its_stages(
    engine: PersistentCpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(engine, SelfMeasuring)
    monkeypatch.setattr(cpu_stages, "_LOOK_EVERY_S", 0.0)  # a tiny model's token is over in no time
    params = SamplingParams(max_tokens=150)
    found = engine.measure_stages(engine.model.new_cache(), random_ids(20), params)
    assert found.tokens == 149 and found.token_us > 0
    told = sum(stage.work_us + stage.wait_us for stage in found.stages)
    assert told == pytest.approx(found.token_us, rel=1e-6)
    assert {stage.stage for stage in found.stages} <= set(stages.STAGES)


def test_stages_are_shares_of_what_was_seen(engine: PersistentCpuEngine) -> None:
    watcher = cpu_stages.Watcher(engine.resident, item_bits=20)
    watcher.looks.update({stages.QKV: 30, stages.SAMPLE: 10})
    watcher.waits.update({stages.SAMPLE: 10 * (engine.threads - 1)})
    tokens = [Token(0, time_us * 1000, 0.0) for time_us in (0, 100, 200)]
    found = watcher.profile(tokens)
    assert found.tokens == 2 and found.token_us == 100
    assert found.stages[0] == StageTime("norm + QKV", 75.0, 0.0)
    waiting = 25 * (engine.threads - 1) / engine.threads
    assert found.stages[1].wait_us == pytest.approx(waiting)


def test_a_reply_that_was_over_too_soon_is_said(engine: PersistentCpuEngine) -> None:
    with pytest.raises(UnpausedError, match="more tokens"):
        cpu_stages.Watcher(engine.resident, item_bits=20).profile([Token(0, 0, 0.0)] * 2)


def test_a_resident_engine_without_counters_is_not_profiled(
    engine: PersistentCpuEngine, model: Model
) -> None:
    class Mute:
        name, model = "mute", engine.model
        decode, prefill, close = engine.decode, engine.prefill, engine.close
        weight_bytes_per_token = engine.weight_bytes_per_token

    prompt = random_ids(10)
    cache = model.new_cache(60)
    engine.prefill(cache, prompt[:-1])
    found = anatomy(EngineSide(Mute(), cache, prompt), cache, prompt)
    assert list(found) == ["reason"] and "no counters" in found["reason"]
