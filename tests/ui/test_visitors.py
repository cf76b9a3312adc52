"""Sessions: how many there may be, who gives way, and that nothing of anyone's crosses."""

from __future__ import annotations

import gc
import logging
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from engine.errors import UnpausedError
from tests.ui.conftest import until
from tests.ui.fakes import FakePipeline, services
from ui.services import TURNS_AT_ONCE, Runtime
from ui.session import Session
from ui.visitors import Visitors


@pytest.fixture
def few(pipeline: FakePipeline) -> Iterator[Visitors]:
    made = Visitors(Runtime(services(pipeline)), max_sessions=2)
    yield made
    made.close_all()


def answered(session: Session, text: str) -> str:
    session.start_text(text)
    assert session.wait_idle(10)
    return session.view().messages[-1]["content"]


def test_the_longest_unused_gives_way_and_those_in_use_do_not(
    few: Visitors, pipeline: FakePipeline
) -> None:
    first, second = few.open(), few.open()
    answered(first, "one")
    third = few.open()
    assert few.get(second.id) is None and few.get(first.id) is first
    pipeline.pace.clear()
    first.start_text("two")
    third.start_text("three")
    with pytest.raises(UnpausedError, match="Too many visitors"):
        few.open()
    pipeline.pace.set()


def test_idle_sessions_are_closed_and_forgotten(few: Visitors, pipeline: FakePipeline) -> None:
    idle, busy = few.open(), few.open()
    answered(idle, "one")
    pipeline.pace.clear()
    busy.start_text("two")
    time.sleep(0.01)
    assert few.sweep(idle_s=3600) == 0
    assert few.sweep(idle_s=0) == 1
    assert few.get(idle.id) is None and few.get(busy.id) is busy
    gone = weakref.ref(idle)
    del idle
    pipeline.pace.set()
    assert busy.wait_idle(10)
    gc.collect()
    assert gone() is None  # with its conversation and cache


def test_conversations_do_not_cross(visitors: Visitors) -> None:
    sessions = [visitors.open() for _ in range(4)]
    for number, session in enumerate(sessions):
        answered(session, f"secret {number}")
    for number, session in enumerate(sessions):
        said = [m["content"] for m in session.view().messages if m["role"] == "user"]
        assert said == [f"secret {number}"]
        assert session._conversation is not None
        texts = [message["content"] for message in session._conversation.messages]
        assert texts[0] == f"secret {number}" and len(texts) == 2


def test_turns_that_come_too_fast_are_refused_with_a_time(session: Session) -> None:
    for _ in range(TURNS_AT_ONCE):
        answered(session, "again")
    with pytest.raises(UnpausedError, match=r"too fast; please wait \d+ s"):
        for _ in range(3):
            session.start_text("again")


def test_waiting_is_told_with_place_and_time(visitors: Visitors, pipeline: FakePipeline) -> None:
    first, second = visitors.open(), visitors.open()
    for session in (first, second):
        session.attach(lambda: None)
    answered(first, "how long does a turn take?")
    pipeline.pace.clear()
    first.start_text("one")
    second.start_text("two")
    told: list[dict[str, object]] = []

    def waits() -> bool:
        told.extend(m for m in second.outgoing() if isinstance(m, dict) and "wait_s" in m)
        return bool(told)

    until(second, waits)
    assert told[0]["state"] == "waiting" and told[0]["position"] == 1
    assert isinstance(told[0]["wait_s"], float)
    pipeline.pace.set()
    assert second.wait_idle(10)


def test_a_turn_that_takes_too_long_gives_way_and_says_so(
    visitors: Visitors, pipeline: FakePipeline
) -> None:
    first, second = visitors.open(), visitors.open()
    visitors.runtime.gate._turn_limit_s = 0.0
    pipeline.hold_after = 3
    first.start_text("a long story")
    until(first, lambda: not pipeline.pace.is_set())
    pipeline.hold_after = None
    second.start_text("me too")
    assert first.wait_idle(10)
    assert first.view().messages[-1]["content"].startswith("The sky")
    assert "others are waiting for the engine" in first.view().messages[-1]["content"]
    pipeline.pace.set()
    assert second.wait_idle(10)


def test_what_people_say_is_not_logged(
    visitors: Visitors, pipeline: FakePipeline, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    session = visitors.open()
    pipeline.transcript = pipeline.reply = "my password is xyzzy"
    answered(session, "xyzzy is my password")
    pipeline.fails = "the engine broke"
    answered(session, "xyzzy again")
    session.start_voice(np.zeros(16000, np.float32), 100.0)
    assert session.wait_idle(10)
    assert "xyzzy" not in caplog.text
