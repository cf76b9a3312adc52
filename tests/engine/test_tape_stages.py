"""Stages from a timeline that is made up; the kernel that writes real ones needs a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from engine.anatomy import StageTime
from engine.tape_stages import stage_times
from kernels import stages


def mark(begun: int, exchanged: int, published: int, stage: int, waited: int = 0) -> list[int]:
    return [begun, exchanged, 0, published, waited << 8 | stage]


def test_waiting_ends_with_the_exchange_and_the_rest_is_work() -> None:
    block = [
        mark(1000, 1400, 2900, stages.QKV),
        mark(3000, 3000, 4900, stages.DOWN, waited=77),
        mark(5000, 6000, 9000, stages.HEAD),
    ]
    found = stage_times(np.array([[block, block]]), token_us=10.0)
    assert found == [
        StageTime("norm + QKV", 1.6, 0.4),
        StageTime("down projection", 2.0, 0.0),
        StageTime("norm + LM head", 3.0, 1.0),
        StageTime("sample", 2.0, 0.0),
    ]


def test_stages_of_one_name_add_up_and_blocks_and_passes_are_averaged() -> None:
    waits = [mark(0, 500, 900, stages.ATTENTION), mark(1000, 1250, 2000, stages.ATTENTION)]
    works = [mark(0, 0, 900, stages.ATTENTION), mark(1000, 1000, 2000, stages.ATTENTION)]
    (attention, _) = stage_times(np.array([[waits, works], [works, works]]), token_us=2.0)
    assert attention.wait_us == pytest.approx(0.75 / 4)
    assert attention.work_us + attention.wait_us == pytest.approx(2.0)


def test_a_block_without_a_part_in_a_stage_waits_for_nobody() -> None:
    stale = [mark(9000, 8000, 9100, stages.ATTENTION), mark(9100, 9000, 9500, stages.OUTPUT)]
    found = stage_times(np.array([[stale]]), token_us=0.5)
    assert sum(stage.wait_us for stage in found) == 0
    assert sum(stage.work_us for stage in found) == pytest.approx(0.5)
