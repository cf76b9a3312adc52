"""Stages without gaps, and when a sample was spoken."""

from __future__ import annotations

import pytest

from audio.waterfall import ORDER, StreamClock, Waterfall


def test_stages_follow_each_other_and_sum_to_the_total() -> None:
    waterfall = Waterfall(10.0)
    for number, name in enumerate(ORDER):
        waterfall.mark(name, 10.1 + 0.1 * number)
    assert [stage.name for stage in waterfall.stages()] == list(ORDER)
    assert all(stage.ms == pytest.approx(100) for stage in waterfall.stages())
    assert waterfall.total_ms == pytest.approx(900)


def test_only_the_first_mark_counts() -> None:
    waterfall = Waterfall(0.0)
    waterfall.mark("prefill", 0.1)
    waterfall.mark("prefill", 0.5)
    assert waterfall.total_ms == pytest.approx(100)


def test_what_took_no_time_and_is_optional_is_left_out_of_the_list_not_of_the_sum() -> None:
    waterfall = Waterfall(0.0)
    for name, at in (("transcription", 0.1), ("queue", 0.1004), ("prefill", 0.2), ("held", 0.2)):
        waterfall.mark(name, at)
    stages = waterfall.stages()
    assert [stage.name for stage in stages] == ["transcription", "prefill"]
    assert sum(stage.ms for stage in stages) == pytest.approx(200)


def test_a_stage_that_overlapped_the_one_before_is_not_counted_twice() -> None:
    waterfall = Waterfall(0.0)
    waterfall.mark("synthesis", 0.3)
    waterfall.mark("held", 0.5)
    waterfall.mark("prefill", 0.2)
    waterfall.mark("first_clause", 0.35)  # its event came after the sound's
    stages = {stage.name: stage.ms for stage in waterfall.stages()}
    assert stages["synthesis"] == 0
    assert sum(stages.values()) == pytest.approx(waterfall.total_ms)


@pytest.mark.parametrize(
    ("waited_ms", "transport_ms", "playback_ms"),
    [
        (None, 0, 250),  # sent at 0, told at 0.3 s, audible 50 ms ago
        (50.0, 100, 50),  # 200 ms of travelling, half of them on the way there
        (400.0, 0, 400),  # more than there was time for: it did not travel
    ],
)
def test_the_way_to_the_player_is_half_of_what_nobody_waited(
    waited_ms: float | None, transport_ms: float, playback_ms: float
) -> None:
    waterfall = Waterfall(0.0)
    waterfall.played(0.0, 0.3, waited_ms, ago_ms=50.0)
    assert waterfall.has("playback")
    assert {stage.name: stage.ms for stage in waterfall.stages()} == {
        "transport": pytest.approx(transport_ms), "playback": pytest.approx(playback_ms)
    }  # fmt: skip


def test_blocks_that_come_late_do_not_move_the_clock() -> None:
    clock = StreamClock()
    for block in range(1, 40):
        late = 0.2 if block % 3 == 0 else 0.0
        clock.push(block * 512, 100.0 + block * 0.032 + late)
    assert clock.time_of(16000) == pytest.approx(101.0)


def test_a_recording_fed_at_once_ends_when_it_was_fed() -> None:
    clock = StreamClock()
    for block in range(1, 40):
        clock.push(block * 512, 100.0 + block * 0.001)
    assert clock.time_of(39 * 512) == pytest.approx(100.039)


def test_what_was_lost_on_the_way_is_forgotten_after_a_while() -> None:
    clock = StreamClock()
    for block in range(1, 200):
        lost_s = 0.5 if block > 100 else 0.0
        clock.push(block * 512, 100.0 + block * 0.032 + lost_s)
    assert clock.time_of(199 * 512) == pytest.approx(100.0 + 199 * 0.032 + 0.5)
