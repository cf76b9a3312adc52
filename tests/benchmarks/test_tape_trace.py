"""The table and the picture of a traced token, from a timeline made up for it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from benchmarks.tape_trace import STAGES, layers_of, picture, table

BLOCKS, LAYERS, STAGE_NS = 3, 4, 1000


@pytest.fixture
def timeline() -> np.ndarray:
    """Every stage takes 1 us: 400 ns to exchange, 500 to multiply, 100 to publish."""
    marks = np.zeros((BLOCKS, LAYERS * len(STAGES) + 1, 8), dtype=np.int64)
    for number in range(marks.shape[1]):
        begun = 10_000 + number * STAGE_NS
        marks[:, number, :4] = [begun, begun + 400, begun + 900, begun + STAGE_NS]
        marks[:, number, 5:7] = [begun + 450, begun + 850]
    marks[2, 1 :: len(STAGES), 1:3] = 0  # the last block has no part in attention
    return marks


def test_the_stages_of_a_layer_add_up(timeline: np.ndarray) -> None:
    rows = table(timeline)
    assert [row["stage"] for row in rows] == list(STAGES)
    for row in rows:
        assert (row["exchange"], row["arithmetic"], row["publish"], row["whole"]) == (
            0.4, 0.5, 0.1, 1.0,
        )  # fmt: skip


def test_a_block_without_a_part_is_left_out(timeline: np.ndarray) -> None:
    per = layers_of(timeline)
    assert np.isnan(per[2, :, 1]).all() and not np.isnan(per[:2]).any()


def test_the_picture_has_three_bars_for_every_part(timeline: np.ndarray) -> None:
    root = ElementTree.fromstring(picture(timeline, 1))
    bars = [element for element in root if element.tag.endswith("rect")]
    assert len(bars) == 3 * (BLOCKS * len(STAGES) - 1)
    assert "6.0 microseconds" in "".join(root.itertext())
