"""What is shown of a dialogue, from its events."""

from __future__ import annotations

import numpy as np
import pytest

from audio.dialogue_events import (
    Event,
    Finish,
    Heard,
    Ignored,
    Measured,
    Play,
    Reply,
    RoundBegan,
    RoundOver,
    SpeechBegan,
    SpeechOver,
    Trouble,
)
from audio.events import Delta, Stage, TurnDone
from audio.record import TurnRecord
from engine.base import Token
from engine.metrics import ReplyMetrics
from ui.listen_screen import News, Screen

STAGES = [Stage("endpointing", 200.0), Stage("synthesis", 100.0)]


@pytest.fixture
def news() -> list[News]:
    return []


@pytest.fixture
def screen(news: list[News]) -> Screen:
    screen = Screen(news.append)
    screen.set(engine="eager", model="tiny", answering="eager", status="listening")
    return screen


def metrics(tokens: int = 3) -> ReplyMetrics:
    times = [(n + 5) * 10_000_000 for n in range(tokens)]
    return ReplyMetrics("eager", "tiny", start_ns=1, token_times_ns=times, prompt_tokens=9)


def delta(generation: int, text: str, at_ms: int) -> Reply:
    return Reply(generation, Delta(text, Token(1, at_ms * 1_000_000, -0.1)))


def over(
    generation: int, finish: Finish = "complete", reply: str = "It is blue.", heard: str = ""
) -> RoundOver:
    record = TurnRecord(generation, "voice", reply=reply, heard=heard, engine="eager")
    record.metrics, record.stages, record.total_ms = metrics().as_dict(), STAGES, 300.0
    return RoundOver(generation, finish, heard, "it broke" if finish == "failed" else "", record)


def take(screen: Screen, *events: Event) -> None:
    for event in events:
        screen.take(event)


def test_a_turn_from_the_first_word_to_the_last(screen: Screen, news: list[News]) -> None:
    take(screen, SpeechBegan(100))
    assert screen.snapshot().status == "hearing you"
    take(screen, Heard(1, "Why is", final=False))
    assert screen.snapshot().hearing == "Why is"
    take(screen, SpeechOver(), RoundBegan(1, "voice"), Heard(1, "Why is the sky blue?", True))
    assert screen.snapshot().status == "thinking" and screen.snapshot().hearing == ""
    take(screen, delta(1, "It is", 50), delta(1, " blue.", 56))
    assert screen.snapshot().reply == "It is blue."
    assert screen.snapshot().metrics.itl_ms() == pytest.approx([6.0])
    take(screen, Play(1, np.zeros(10, np.int16), 1000, "It is blue."))
    assert screen.snapshot().status == "speaking"
    take(screen, Reply(1, TurnDone("It is blue.", metrics(), STAGES, "complete")))
    take(screen, Measured(1, STAGES, 300.0), over(1))
    view = screen.snapshot()
    assert view.status == "listening" and view.reply == ""
    assert view.stages == [{"name": "endpointing", "ms": 200.0}, {"name": "synthesis", "ms": 100.0}]
    assert view.metrics.tokens == 3
    assert [(line.who, line.text) for line in news[:2]] == [
        ("you", "Why is the sky blue?"),
        ("reply", "It is blue."),
    ]
    assert news[1].label == "eager"
    assert "3 tokens" in news[2].text and "300.0 ms to first audio" in news[2].text


@pytest.mark.parametrize(
    ("finish", "heard", "said"),
    [
        ("interrupted", "It is", "It is …"),
        ("interrupted", "", "(interrupted before it spoke)"),
        ("stopped", "It", "It … (stopped)"),
    ],
)
def test_of_a_cut_reply_what_was_heard_is_shown(
    finish: Finish, heard: str, said: str, screen: Screen, news: list[News]
) -> None:
    take(screen, RoundBegan(1, "voice"), over(1, finish, heard=heard))
    assert news[0].text == said


def test_an_empty_reply_is_said(screen: Screen, news: list[News]) -> None:
    take(screen, RoundBegan(1, "voice"), over(1, reply=" "))
    assert "nothing to say" in news[0].text


@pytest.mark.parametrize("finish", ["superseded", "no_speech"])
def test_what_was_taken_back_leaves_no_line(
    finish: Finish, screen: Screen, news: list[News]
) -> None:
    take(screen, RoundBegan(1, "voice"), over(1, finish))
    assert not news and screen.snapshot().status == "listening"


def test_faults_and_sounds_are_noticed(screen: Screen, news: list[News]) -> None:
    take(screen, RoundBegan(1, "voice"), over(1, "failed"))
    take(screen, Trouble("no speech was heard"), Ignored("mm-hm", "back_channel"))
    take(screen, Ignored("", "noise"))
    assert [line.text for line in news] == [
        "It broke.",
        "No speech was heard.",
        "Heard “mm-hm”: no interruption.",
    ]


def test_events_of_another_round_change_nothing(screen: Screen, news: list[News]) -> None:
    take(screen, RoundBegan(2, "voice"), delta(1, "stale", 5), over(1))
    assert screen.snapshot().reply == "" and not news
    assert screen.snapshot().status == "thinking"


def test_a_snapshot_does_not_change_afterwards(screen: Screen) -> None:
    take(screen, RoundBegan(1, "voice"), delta(1, "a", 50))
    snapshot = screen.snapshot()
    take(screen, delta(1, "b", 60))
    assert snapshot.metrics.tokens == 1 and snapshot.reply == "a"


def test_a_typed_round_without_sound_gives_no_time_to_first_audio(
    screen: Screen, news: list[News]
) -> None:
    take(screen, RoundBegan(1, "text"), over(1))
    assert "first audio" not in news[-1].text
