"""One visitor's turns, with a fake pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UnpausedError
from tests.ui.client import SPEECH, Client, contents, run
from tests.ui.conftest import until
from tests.ui.fakes import REPLY, FakeConversation, FakeEntry, FakePipeline, services
from ui.services import Runtime, Services
from ui.session import MAX_TEXT_CHARS, Session
from ui.visitors import Visitors


def test_a_typed_turn_is_answered_and_shown(session: Session) -> None:
    turn = session.start_text("  Why?  ")
    run(session)
    view = session.view()
    assert contents(session) == [("user", "Why?"), ("assistant", REPLY)]
    assert (view.turn, view.running, view.failed_text) == (turn, False, "")


def test_a_spoken_turn_shows_what_was_understood(session: Session) -> None:
    session.start_voice(SPEECH, 210.0)
    run(session)
    assert contents(session) == [("user", "Why is the sky blue?"), ("assistant", REPLY)]


def test_turns_left_out_of_the_context_are_said(session: Session, pipeline: FakePipeline) -> None:
    pipeline.trimmed_turns = 2
    session.start_text("Why?")
    run(session)
    assert contents(session)[-1][1].endswith("the oldest 2 turns were left out.*")


def test_events_tell_the_turn_from_start_to_end(session: Session) -> None:
    client = Client(session, sound=False)
    turn = session.start_voice(SPEECH, 210.0)
    run(session)
    assert client.of("turn") == [{"type": "turn", "turn": turn, "kind": "voice"}]
    assert client.of("heard")[0]["text"] == "Why is the sky blue?"
    states = [event["state"] for event in client.of("state")]
    assert [state for state in states if state != "loading"] == [
        "transcribing",
        "thinking",
        "answering",
    ]
    done = client.of("done")[0]
    assert done["finish"] == "complete"
    names = [stage["name"] for stage in done["stages"] if stage["name"] != "queue"]
    assert names == ["endpointing", "transcription", "prefill"]
    assert done["stages"][0]["ms"] == pytest.approx(210.0)
    assert all(event["turn"] == turn for event in client.events if "turn" in event and
               event["type"] != "ready")  # fmt: skip


def test_metrics_come_from_the_engines_clock(session: Session) -> None:
    assert session.metrics() is None
    turn = session.start_text("Why?")
    run(session)
    metrics = session.metrics()
    assert metrics is not None
    assert metrics["turn"] == turn and metrics["running"] is False
    assert metrics["tokens"] == len(REPLY.split())
    assert metrics["tpot_ms"]["p50"] == pytest.approx(18.4)
    assert metrics["tokens_per_s"] == pytest.approx(1000 / 18.4, abs=0.01)


def test_a_silent_recording_is_no_turn(session: Session, pipeline: FakePipeline) -> None:
    pipeline.transcript = ""
    client = Client(session)
    session.start_voice(SPEECH, 0.0)
    run(session)
    assert contents(session) == []
    assert client.of("done")[0]["finish"] == "no_speech"


@pytest.mark.parametrize("text", ["", " \n ", "x" * (MAX_TEXT_CHARS + 1)])
def test_a_turn_that_cannot_start_changes_nothing(session: Session, text: str) -> None:
    with pytest.raises(UnpausedError):
        session.start_text(text)
    assert contents(session) == [] and not session.view().running


def test_a_failed_turn_says_why_and_gives_the_text_back(
    session: Session, pipeline: FakePipeline
) -> None:
    pipeline.fails = "The voice is missing."
    session.start_text("Why?")
    run(session)
    assert contents(session)[1] == ("assistant", "**This turn failed.** The voice is missing.")
    assert session.view().failed_text == "Why?"
    pipeline.fails = ""
    session.start_text("Why?")
    assert session.view().failed_text == ""
    run(session)


def test_a_defect_is_told_in_words(pipeline: FakePipeline) -> None:
    def broken() -> Any:
        raise RuntimeError("a secret path")

    session = Visitors(Runtime(services(pipeline, make_conversation=broken))).open()
    session.start_text("Why?")
    run(session)
    assert "the log has the details" in contents(session)[1][1]
    assert "secret" not in contents(session)[1][1]


def test_what_failed_to_load_is_tried_again(pipeline: FakePipeline) -> None:
    attempts = iter([UnpausedError("No weights."), None])

    def conversation() -> Any:
        fault = next(attempts)
        if fault is not None:
            raise fault
        return FakeConversation()

    session = Visitors(Runtime(services(pipeline, make_conversation=conversation))).open()
    for expected in ("**This turn failed.** No weights.", REPLY):
        session.start_text("Why?")
        run(session)
        assert contents(session)[-1][1] == expected


def test_stop_ends_the_turn_and_keeps_what_was_shown(
    session: Session, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 4
    session.start_text("Why?")
    until(session, lambda: contents(session)[-1][1] == "The sky is blue.")
    session.stop()
    run(session)
    assert not session.view().running
    assert contents(session)[-1] == ("assistant", "The sky is blue.\n\n*Stopped.*")


def test_a_stale_stop_is_ignored(session: Session, pipeline: FakePipeline) -> None:
    pipeline.pace.clear()
    turn = session.start_text("Why?")
    session.stop(turn - 1)
    pipeline.pace.set()
    run(session)
    assert contents(session)[-1] == ("assistant", REPLY)


def test_typing_during_a_turn_stops_it_and_is_answered(
    session: Session, pipeline: FakePipeline
) -> None:
    pipeline.pace.clear()
    session.start_text("First")
    until(session, lambda: bool(pipeline.turns))
    pipeline.pace.set()
    second = session.start_text("Second")
    run(session)
    view = session.view()
    assert view.turn == second
    assert [text for role, text in contents(session) if role == "user"] == ["First", "Second"]
    assert contents(session)[-1] == ("assistant", REPLY)


def test_many_turns_at_once_end_with_the_last_one_answered(session: Session) -> None:
    for number in range(12):
        session.start_text(f"Question {number}")
    run(session)
    assert contents(session)[-1] == ("assistant", REPLY)
    assert not session.view().running


def test_a_new_conversation_forgets_and_stays_usable(
    session: Session, pipeline: FakePipeline
) -> None:
    client = Client(session)
    pipeline.pace.clear()
    session.start_text("First")
    until(session, lambda: bool(pipeline.turns))
    session.new_conversation()
    assert contents(session) == [] and client.of("cleared")
    pipeline.pace.set()
    session.start_text("Second")
    run(session)
    assert contents(session) == [("user", "Second"), ("assistant", REPLY)]


def test_an_engine_is_chosen_for_the_next_turn(pipeline: FakePipeline) -> None:
    engines = [
        FakeEntry("eager", "Kernel per op"),
        FakeEntry("cpu", "Native"),
        FakeEntry("graph", "CUDA graph", reason="no GPU"),
    ]
    built: list[str] = []
    made = services(pipeline, engines)
    made = Services(**{**vars(made), "make_engine": built.append})
    session = Visitors(Runtime(made)).open()
    session.set_engine("cpu")
    for _ in range(2):
        session.start_text("Why?")
        run(session)
    assert built == ["cpu"]
    with pytest.raises(UnpausedError, match="no GPU"):
        session.set_engine("graph")
    with pytest.raises(UnpausedError, match="eager, cpu, graph"):
        session.set_engine("warp")
    assert session.engine_name == "cpu"


def test_waiting_gives_the_newest_view(session: Session) -> None:
    version = session.view().version
    assert session.wait(version, 0.0).version == version
    session.start_text("Why?")
    seen: list[str] = []
    view = session.wait(version, 5)
    while view.running:
        seen.append(view.messages[-1]["content"])
        view = session.wait(view.version, 5)
    assert all(REPLY.startswith(text) for text in seen if text != "Why?")
