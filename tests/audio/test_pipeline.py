from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pytest

from audio import turn as turn_module
from audio.events import Delta, Event, Speech, TurnDone, TurnFailed
from audio.turn import DEFECT, Turn
from engine.errors import UnpausedError
from engine.generate import TextDelta
from tests.audio.fakes import (
    RATE_HZ,
    WAIT_S,
    FakeConversation,
    FakeSynthesizer,
    Parts,
    Script,
    Step,
)

WORDS: Script = [
    "The sky",
    " is blue,",
    " because air",
    " scatters light.",
    " It is red",
    " at night.",
]
REPLY = "The sky is blue, because air scatters light. It is red at night."
STAGES = ["prefill", "first_clause", "synthesis"]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread for thread in left if thread.name.startswith("turn")]


def parts(script: Script | None = None) -> Parts:
    return Parts(FakeConversation(WORDS if script is None else script))


def last(events: list[Event]) -> TurnDone:
    assert isinstance(events[-1], TurnDone)
    return events[-1]


def spoken(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Speech)]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def test_a_turn() -> None:
    fakes = parts()
    events = list(fakes.text_turn("What is red?"))
    assert fakes.conversation.replies[0].user_text == "What is red?"
    assert text(events) == REPLY
    assert spoken(events) == [
        "The sky is blue,",
        "because air scatters light.",
        "It is red at night.",
    ]
    assert sum(isinstance(event, TurnDone) for event in events) == 1
    done = last(events)
    assert (done.reply, done.finish) == (REPLY, "complete")
    assert done.metrics is not None and done.metrics.tokens == len(WORDS)
    assert [stage.name for stage in done.stages] == STAGES


def test_speech_events_carry_the_audio_of_their_text() -> None:
    for event in parts().text_turn():
        if isinstance(event, Speech):
            assert event.rate_hz == RATE_HZ and event.pcm.dtype == np.int16
            assert len(event.pcm) == len(event.text)


def test_deltas_carry_the_engine_s_tokens() -> None:
    deltas = [event for event in parts().text_turn() if isinstance(event, Delta)]
    assert [delta.token.id for delta in deltas if delta.token] == list(range(len(WORDS)))


def test_a_silent_turn() -> None:
    fakes = parts()
    events = list(fakes.text_turn(speak=False))
    assert text(events) == REPLY and spoken(events) == fakes.synthesizer.spoken == []
    assert [stage.name for stage in last(events).stages] == STAGES[:1]


def test_stages_are_contiguous_and_sum_to_the_first_audio() -> None:
    turn = parts().text_turn()
    stages = last(list(turn)).stages
    first_audio_ms = (turn._marks["synthesis"] - turn._started_ns) / 1e6
    assert all(stage.ms > 0 for stage in stages)
    assert sum(stage.ms for stage in stages) == pytest.approx(first_audio_ms, abs=1e-6)


@pytest.mark.parametrize("script", [[], [""], ["😀"], ["```\ncode\n```"]])
def test_a_reply_without_a_word_to_say_closes_the_turn(script: Script) -> None:
    events = list(parts(script).text_turn())
    assert spoken(events) == []
    assert last(events).finish == "complete"
    assert [stage.name for stage in last(events).stages] in ([], ["prefill"])


def test_thinking_is_neither_shown_nor_spoken_but_counted() -> None:
    thought = TextDelta("Hm. Let me think about it.", None, thinking=True)
    events = list(parts([thought, "Here you go."]).text_turn())
    assert text(events) == "Here you go." and spoken(events) == ["Here you go."]
    assert sum(isinstance(event, Delta) for event in events) == 2


def test_speech_starts_before_the_reply_has_ended() -> None:
    step = Step()
    events = iter(parts(["The sky is blue,", " because", step, " of air."]).text_turn())
    first = next(event for event in events if isinstance(event, Speech))
    assert first.text == "The sky is blue,"
    step.go_on.set()
    assert spoken(list(events)) == ["because of air."]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def full(turn: Turn) -> bool:
    return len(turn._events._items) == turn_module._MAX_EVENTS


def test_a_slow_listener_holds_up_decoding_but_loses_nothing() -> None:
    script: Script = [f"word{index} " for index in range(1000)]
    turn = parts(script).text_turn()
    events: list[Event] = []
    for event in turn:
        events.append(event)
        if len(events) in (1, 300):
            until(lambda: full(turn))
    assert text(events) == "".join(cast("list[str]", script))
    words = " ".join(spoken(events)).rstrip(".").split()
    assert words == text(events).split()


def begin(turn: Turn) -> Callable[[], list[Event]]:
    """Iterate `turn` on a thread; returns a way to wait for its end and get its events."""
    events: list[Event] = []
    thread = threading.Thread(target=lambda: events.extend(turn), name="listener")
    thread.start()

    def wait() -> list[Event]:
        thread.join(WAIT_S)
        assert not thread.is_alive()
        return events

    return wait


def test_stop_before_it_begins() -> None:
    fakes = parts()
    turn = fakes.text_turn()
    turn.stop()
    events = list(turn)
    assert last(events).finish == "stopped" and last(events).reply == ""
    assert spoken(events) == [] and fakes.conversation.replies == []


@pytest.mark.parametrize("before", [0, 1, 4])
def test_stop_during_decoding(before: int) -> None:
    step = Step()
    fakes = parts([*WORDS[:before], step, *WORDS[before:]])
    turn = fakes.text_turn()
    wait = begin(turn)
    assert step.reached.wait(WAIT_S)
    turn.stop()
    step.go_on.set()
    done = last(wait())
    assert done.finish == "stopped"
    assert done.reply == "".join(cast("list[str]", WORDS[:before]))
    assert text(wait()) == done.reply
    assert fakes.conversation.said == [done.reply]


def test_stop_during_synthesis() -> None:
    fakes = parts()
    step = fakes.synthesizer.step = Step()
    turn = fakes.text_turn()
    wait = begin(turn)
    assert step.reached.wait(WAIT_S)
    turn.stop()
    step.go_on.set()
    events = wait()
    assert last(events).finish == "stopped" and spoken(events) == []
    assert len(fakes.synthesizer.spoken) == 1
    assert text(events) == last(events).reply


def test_stop_by_the_listener_drops_speech_that_waits() -> None:
    turn = parts().text_turn()
    events: list[Event] = []
    for event in turn:
        events.append(event)
        if isinstance(event, Speech):
            turn.stop()
    assert len(spoken(events)) == 1
    assert last(events).finish == "stopped" and text(events) == last(events).reply


def test_stop_while_nobody_takes_the_events() -> None:
    """Writers that wait for room must not keep the turn from ending."""
    script: Script = ["Some words to say. "] * 2000
    turn = parts(script).text_turn()
    events = iter(turn)
    taken = [next(events)]
    until(lambda: full(turn))
    turn.stop()
    taken += events
    assert last(taken).finish == "stopped" and spoken(taken) == []
    assert text(taken) == last(taken).reply


def test_stop_twice_and_afterwards() -> None:
    turn = parts().text_turn()
    events = list(turn)
    turn.stop()
    turn.stop()
    assert last(events).finish == "complete"


@pytest.mark.parametrize("taken", [1, 3])
def test_abandoned_iteration_stops_the_turn(taken: int) -> None:
    fakes = parts(["Some words to say. "] * 2000)
    events = fakes.text_turn().__iter__()
    for _ in range(taken):
        next(events)
    events.close()  # type: ignore[attr-defined]
    reply = fakes.conversation.replies[0]
    assert reply.stopped.is_set() and reply.ended


def test_it_is_iterated_once() -> None:
    turn = parts().text_turn()
    list(turn)
    with pytest.raises(RuntimeError, match="once"):
        list(turn)


def test_metrics_at_any_time() -> None:
    step = Step()
    turn = parts(["One", step, " two"]).text_turn()
    assert turn.metrics() is None
    wait = begin(turn)
    assert step.reached.wait(WAIT_S)
    metrics = turn.metrics()
    assert metrics is not None and metrics.tokens == 1
    step.go_on.set()
    assert last(wait()).metrics is not None and metrics.tokens == 2


FAULTS = [
    (UnpausedError("the context is full: start anew"), "the context is full: start anew"),
    (ZeroDivisionError("secret"), DEFECT),
    (MemoryError(), DEFECT),
]


def failure(events: list[Event]) -> str:
    assert isinstance(events[-1], TurnFailed)
    assert not any(isinstance(event, TurnDone) for event in events)
    return events[-1].message


@pytest.mark.parametrize("fault, message", FAULTS)
def test_a_fault_anywhere_is_told_in_one_line(
    fault: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused = Parts(FakeConversation(WORDS, refusal=fault))
    broken = parts([*WORDS[:3], fault])
    mute = Parts(FakeConversation(WORDS), synthesizer=FakeSynthesizer(fault=fault))
    for fakes in (refused, broken, mute):
        assert failure(list(fakes.text_turn())) == message
    logged = [record for record in caplog.records if record.exc_info]
    assert len(logged) == (0 if isinstance(fault, UnpausedError) else 3)


def test_a_fault_of_the_voice_stops_decoding() -> None:
    step = Step()
    fakes = parts(["Some words to say. And more.", step, " And even more"])
    fakes.synthesizer.fault = UnpausedError("the voice broke")
    turn = fakes.text_turn()
    wait = begin(turn)
    assert step.reached.wait(WAIT_S)
    until(turn._stopped.is_set)
    step.go_on.set()
    assert failure(wait()) == "the voice broke"
    assert fakes.conversation.replies[0].stopped.is_set()


def test_turns_follow_each_other_after_stops() -> None:
    """Two interruptions in quick succession, many times over: no deadlock, nothing left."""
    for round_ in range(30):
        turn = parts(["Some words to say. "] * 50).text_turn()
        for count, _ in enumerate(turn):
            if count == round_:
                turn.stop()
                threading.Thread(target=turn.stop).start()


@pytest.mark.skipif(sys.platform != "linux", reason="a priority per thread is Linux's")
def test_only_what_follows_the_first_clause_gives_way() -> None:
    fakes = parts()
    fakes.synthesizer.notice = lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    list(fakes.text_turn())
    first, *rest = fakes.synthesizer.niceness
    assert rest and all(niceness > first for niceness in rest)
