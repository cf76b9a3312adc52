"""Figures as bars and strips."""

from __future__ import annotations

import dataclasses

import pytest

from engine.base import DraftCounts
from engine.metrics import ReplyMetrics
from ui.figures import number, strip, sum_of, summary, waterfall
from ui.words import answer_label

STAGES = [{"name": "endpointing", "ms": 200.0}, {"name": "prefill", "ms": 50.0},
          {"name": "transport", "ms": 0.0}, {"name": "playback", "ms": 150.0}]  # fmt: skip


def test_drafts_are_told_where_there_are_any() -> None:
    times = [10_000_000 * n for n in (1, 2, 2, 2, 3)]
    plain = ReplyMetrics(engine="e", model="m", token_times_ns=times)
    assert "pass" not in summary(plain.as_dict()) + answer_label(plain.as_dict(), "E")
    for counts, words in (
        (DraftCounts(2, 4, 2), "2.0 tokens a pass, 50% of drafts right"),
        (DraftCounts(4, 0, 0), "nothing drafted"),
    ):
        figures = dataclasses.replace(plain, drafts=counts).as_dict()
        assert summary(figures).endswith(words)
        assert answer_label(figures, "E").endswith(words)


def test_bars_follow_each_other_and_fill_the_width() -> None:
    rows = waterfall(STAGES, 40)
    assert [row[0] for row in rows] == ["endpointing", "prefill", "playback"]
    bars = [row[2] for row in rows]
    assert [(bar.index("#"), len(bar)) for bar in bars] == [(0, 20), (20, 25), (25, 40)]


def test_the_shortest_stage_has_a_bar() -> None:
    rows = waterfall([{"name": "a", "ms": 999.0}, {"name": "b", "ms": 0.2}], 10)
    assert rows[1][2] == " " * 9 + "#"
    assert waterfall([], 10) == []


@pytest.mark.parametrize("plain", [False, True])
def test_a_strip_is_as_high_as_the_tokens_were_long(plain: bool) -> None:
    drawn = strip([5.0] * 20 + [10.0] + [5.0] * 20, 60, plain)
    assert len(drawn) == 41
    assert drawn[20] != drawn[0] and len(set(drawn)) == 2
    assert drawn.isascii() == plain
    assert len(strip([5.0] * 100, 30, plain)) == 30
    assert strip([], 30) == "" and strip([1.0], 0) == ""


def test_one_slow_token_does_not_flatten_the_others() -> None:
    drawn = strip([5.0] * 300 + [5000.0] + [5.0] * 99, 400)
    assert drawn[0] >= "▅"


def test_words() -> None:
    assert number(None, "ms") == "-" and number(1234.56, "ms") == "1,234.6 ms"
    assert sum_of(STAGES[:2], 250.0) == (
        "endpointing 200.0 ms + prefill 50.0 ms = 250.0 ms to first audio"
    )
    assert sum_of(STAGES[:1], None) == "endpointing 200.0 ms"
