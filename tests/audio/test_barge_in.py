"""Voice over a reply: what is done about it, and when."""

from __future__ import annotations

import pytest

from audio.barge_in import BargeIn, BargeInConfig

MS = 32.0
Script = list[tuple[int, float]]  # (blocks, probability)


def run(barge_in: BargeIn, *script: tuple[int, float]) -> list[tuple[int, str]]:
    """(milliseconds, action) of everything that was done."""
    told: list[tuple[int, str]] = []
    at = 0.0
    for blocks, probability in script:
        for _ in range(blocks):
            at += MS
            action = barge_in.push(probability, MS)
            if action is not None:
                told.append((int(at), action))
    return told


@pytest.mark.parametrize(
    "script, told",
    [
        ([(50, 0.0)], []),
        ([(50, 0.4)], []),
        ([(1, 0.9), (20, 0.0)], []),
        ([(2, 0.9), (20, 0.0)], [(64, "duck"), (288, "unduck")]),
        ([(3, 0.9), (4, 0.0), (3, 0.9), (20, 0.0)], [(64, "duck"), (256, "pause")]),
        ([(4, 0.9), (20, 0.0)], [(64, "duck"), (128, "pause")]),
        ([(30, 0.9)], [(64, "duck"), (128, "pause"), (640, "probe")]),
        ([(60, 0.5)], [(64, "duck"), (128, "pause"), (640, "probe")]),
        (
            [(1, 0.9), (7, 0.0), (1, 0.9), (7, 0.0), (1, 0.9)],
            [],  # clicks far apart do not add up
        ),
    ],
)
def test_what_is_done(script: Script, told: list[tuple[int, str]]) -> None:
    assert run(BargeIn(), *script) == told


def test_every_false_alarm_makes_it_more_patient() -> None:
    barge_in = BargeIn()
    pauses = []
    for _ in range(6):
        told = run(barge_in, (40, 0.9), (20, 0.0))
        pauses.append(next(at for at, action in told if action == "pause"))
        barge_in.false_alarm()
    assert pauses == [128, 256, 512, 1024, 1024, 1024]


def test_a_pause_is_said_once_for_one_voice_however_long_it_lasts() -> None:
    told = run(BargeIn(), (300, 0.9))
    assert [action for _, action in told] == ["duck", "pause", "probe"]


def test_after_a_long_gap_the_voice_is_probed_anew() -> None:
    told = run(BargeIn(), (25, 0.9), (10, 0.0), (25, 0.9))
    assert [action for _, action in told] == ["duck", "pause", "probe", "probe"]


def test_thresholds_are_the_configs() -> None:
    config = BargeInConfig(threshold=0.8, duck_ms=32, pause_ms=320, probe_ms=960)
    assert run(BargeIn(config), (40, 0.7)) == []
    told = run(BargeIn(config), (40, 0.8))
    assert told == [(32, "duck"), (320, "pause"), (960, "probe")]
