"""Traces, races between them, replays of them, and what is said of a turn. All pure."""

from __future__ import annotations

import json

import pytest

from engine.errors import UnpausedError
from engine.metrics import ReplyMetrics
from ui import lanes
from ui.race import badge, outcome, running_order
from ui.replay import NOTE, PUBLISHED, check_speed, published, replay, retime
from ui.trace import Trace, TraceToken, first_difference

WORDS = ["The", " sky", " is", " blue."]


def trace(
    gap_ms: float = 10.0,
    words: list[str] = WORDS,
    engine: str = "eager",
    hidden: int = 0,
    first_ms: float = 50.0,
) -> Trace:
    """A reply whose tokens came evenly."""
    texts = [""] * hidden + words
    times = [first_ms + gap_ms * number for number in range(len(texts))]
    metrics = ReplyMetrics(
        engine=engine,
        model="m",
        token_times_ns=[int(ms * 1e6) for ms in times],
        hidden_tokens=hidden,
    )
    tokens = tuple(
        TraceToken(100 + sum(map(ord, text)), ms, text, number < hidden)
        for number, (text, ms) in enumerate(zip(texts, times, strict=True))
    )
    return Trace("Why?", engine, engine.title(), "m", 0, tokens, metrics.as_dict())


# --- traces ---


def test_a_trace_knows_its_words_times_and_rate() -> None:
    made = trace(hidden=2)
    assert made.answer == "The sky is blue." and made.end_ms == 100.0
    assert made.rate == pytest.approx(100.0)
    assert made.latencies_ms() == pytest.approx([50, 10, 10, 10, 10, 10])
    assert made.as_dict()["tokens"][2] == {
        "id": made.tokens[2].id,
        "at_ms": 70.0,
        "text": "The",
        "hidden": False,
    }
    assert trace(words=[]).end_ms == 0.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [(WORDS, None), (WORDS[:2], 2), ([*WORDS, " Yes."], 4), (["The", " sea", " is"], 1), ([], 0)],
)
def test_the_first_token_that_differs(words: list[str], expected: int | None) -> None:
    assert first_difference(trace(), trace(words=words, hidden=3)) == expected
    assert first_difference(trace(words=words), trace()) == expected


# --- the race ---


def test_everyone_runs_once_and_the_coin_says_who_first() -> None:
    assert [running_order(2, coin) for coin in (0, 1, 2, 7)] == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert sorted(running_order(3, 5)) == [0, 1, 2]


def test_the_faster_one_wins_and_by_how_much() -> None:
    result = outcome((trace(10), trace(2, engine="cpu", first_ms=20)))
    assert result.winner == 1 and result.ratio == pytest.approx(5)
    assert result.sentence == "Cpu wrote 5.0 times as fast as Eager and was done 54 ms sooner."
    assert outcome((trace(1), trace(30))).sentence.startswith("Eager wrote 30 times as fast")


def test_answers_of_other_lengths_are_compared_by_rate() -> None:
    result = outcome((trace(10, words=["No."] * 2), trace(2, engine="cpu")))
    assert result.winner == 1 and "done" not in result.sentence


def test_level_and_too_short_are_said() -> None:
    assert outcome((trace(10), trace(10.2, engine="cpu"))).winner is None
    assert "level" in outcome((trace(10), trace(10.2))).sentence
    assert "too little" in outcome((trace(words=["No."]), trace())).sentence


def test_the_badge_says_whether_the_tokens_are_the_same() -> None:
    assert badge(trace(), trace(2)) == (True, "Identical: all 4 tokens are the same")
    assert badge(trace(), trace(words=["The", " sea"])) == (
        False,
        "The tokens differ from number 2 on",
    )


def test_a_reply_that_was_stopped_is_compared_as_far_as_it_went() -> None:
    stopped = trace(words=WORDS[:2])
    stopped.metrics["finish_reason"] = "stopped"
    assert badge(stopped, trace()) == (
        True,
        "Identical as far as it went: 2 tokens, then it was stopped",
    )
    assert not badge(stopped, trace(words=["The", " sea"]))[0]


# --- the speed dial ---


def test_a_replay_has_the_pace_that_was_asked_for() -> None:
    times = retime(trace(), 500)
    assert times == pytest.approx([50, 52, 54, 56])
    assert retime(trace(words=[]), 500) == []


def test_the_published_speeds_have_a_source_and_say_how_they_are_known() -> None:
    assert [speed.tokens_per_s for speed in PUBLISHED] == [170, 500, 750, 1000, 3047]
    for speed in PUBLISHED:
        assert speed.source and speed.url.startswith("https://") and speed.system
        assert speed.kind.split(" ")[0].strip(":") in ("measured", "claimed", "calculated")
    assert "not specified" in PUBLISHED[0].kind
    assert published(500) is PUBLISHED[1] and published(501) is None


@pytest.mark.parametrize("speed", [None, 0, -3, 0.5, 20_001, float("nan"), float("inf")])
def test_what_is_no_speed_is_one_line(speed: float | None) -> None:
    with pytest.raises(UnpausedError, match="choose a speed from 1 to 20,000 tokens/s"):
        check_speed(speed)


@pytest.mark.parametrize("speed", [750, 123.5])
def test_a_replay_is_marked_wherever_it_goes(speed: float) -> None:
    exported = replay(trace(), speed)
    assert exported["replay"] is True and exported["note"] == NOTE
    assert (exported["stands_for"] is not None) == (speed == 750)
    assert exported["recorded"]["metrics"]["tokens_per_s"] == pytest.approx(100)
    shown = json.loads(lanes.dialled(trace(), speed))
    assert shown["replay"] is True and NOTE in shown["note"]
    assert shown["lanes"][1]["title"].startswith("Replay at")


# --- side by side ---


def test_two_replies_side_by_side() -> None:
    shown = json.loads(lanes.compared("race", (trace(), trace(2, engine="cpu")), first=1))
    assert [lane["title"] for lane in shown["lanes"]] == ["Eager", "Cpu"]
    assert shown["badge"]["same"] and "5.0 times" in shown["outcome"]
    assert "Cpu ran first, by lot" in shown["note"] and not shown["closable"]
    assert "".join(shown["lanes"][0]["pieces"]) == "The sky is blue."
    assert json.loads(lanes.compared("again", (trace(), trace()), 0))["closable"]


def test_a_hidden_pair_gives_nothing_away() -> None:
    text = lanes.hidden_pair((trace(), trace(2, engine="cpu")))
    assert "eager" not in text.lower() and "cpu" not in text.lower()
    shown = json.loads(text)
    assert [lane["title"] for lane in shown["lanes"]] == ["A", "B"]
    assert shown["badge"] is None and not shown["outcome"]
    assert all(lane["figures"] == [] and not lane["strip"] for lane in shown["lanes"])
