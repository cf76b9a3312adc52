"""Several visitors: one engine, bounded sessions."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.errors import UnpausedError
from tests.ui.client import SPEECH, Client, contents, run
from tests.ui.conftest import until
from tests.ui.fakes import REPLY, FakePipeline, services
from ui.handlers import Handlers
from ui.services import Runtime
from ui.visitors import Visitors


def test_two_visitors_never_decode_at_once(visitors: Visitors, pipeline: FakePipeline) -> None:
    first, second = visitors.open(), visitors.open()
    client = Client(second)
    pipeline.pace.clear()
    first.start_text("First")
    until(first, lambda: len(pipeline.turns) == 1)
    second.start_text("Second")
    until(second, lambda: any(e["state"] == "waiting" for e in client.of("state")))
    assert client.of("state")[-1]["position"] == 1
    assert len(pipeline.turns) == 1
    pipeline.pace.set()
    run(first)
    run(second)
    assert contents(first) == [("user", "First"), ("assistant", REPLY)]
    assert contents(second) == [("user", "Second"), ("assistant", REPLY)]


def test_a_spoken_turn_that_waits_says_so_also_once_its_words_are_certain(
    visitors: Visitors, pipeline: FakePipeline
) -> None:
    first, second = visitors.open(), visitors.open()
    client = Client(second)
    pipeline.pace.clear()
    first.start_text("First")
    until(first, lambda: len(pipeline.turns) == 1)
    second.start_voice(SPEECH, 200.0)
    until(second, lambda: bool(client.of("heard")))
    until(second, lambda: client.of("state")[-1]["state"] == "waiting")
    pipeline.pace.set()
    run(second)
    states = [event["state"] for event in client.of("state")]
    served = states[len(states) - states[::-1].index("waiting") :]
    assert served == ["thinking", "answering"]


def test_who_waits_can_leave(visitors: Visitors, pipeline: FakePipeline) -> None:
    first, second, third = visitors.open(), visitors.open(), visitors.open()
    pipeline.pace.clear()
    first.start_text("First")
    until(first, lambda: len(pipeline.turns) == 1)
    second.start_text("Second")
    third.start_text("Third")
    second.stop()
    run(second)
    pipeline.pace.set()
    run(third)
    assert len(pipeline.turns) == 2


def test_ids_cannot_be_guessed_and_sessions_are_bounded(pipeline: FakePipeline) -> None:
    visitors = Visitors(Runtime(services(pipeline)), max_sessions=3)
    ids = [visitors.open().id for _ in range(5)]
    assert len(set(ids)) == 5 and min(map(len, ids)) >= 32
    assert visitors.get(ids[0]) is None and visitors.get(ids[-1]) is not None
    assert visitors.get("guess") is None


def test_busy_sessions_are_not_evicted(pipeline: FakePipeline) -> None:
    visitors = Visitors(Runtime(services(pipeline)), max_sessions=1)
    session = visitors.open()
    pipeline.pace.clear()
    session.start_text("Why?")
    with pytest.raises(UnpausedError, match="Too many visitors"):
        visitors.open()
    visitors.close(session.id)
    run(session)
    visitors.open()


def test_what_programs_needed_is_given_back_though_no_session_ends(
    pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.visitors.SWEEP_S", 0.02)
    visitors, tidied = Visitors(Runtime(services(pipeline))), threading.Event()
    monkeypatch.setattr(visitors, "tidy", tidied.set)
    for thread in visitors.runtime.warm():
        thread.join(30)
    visitors.watch()
    try:
        assert not tidied.wait(0.3)
        visitors.runtime.gate.enter("a program", "speech").leave()
        assert tidied.wait(30)
    finally:
        visitors.close_all()


def test_tabs_that_were_never_connected_are_no_more_than_sessions(pipeline: FakePipeline) -> None:
    handlers = Handlers(Visitors(Runtime(services(pipeline)), max_sessions=2))
    for number in range(6):
        request = SimpleNamespace(session_hash=f"tab-{number}", query_params={})
        assert handlers.open(cast(Any, request))[0]
    assert set(handlers._by_tab) == {"tab-4", "tab-5"}
