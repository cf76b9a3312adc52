"""Who has the floor, as a socket's client is told: hands-free turns, interruptions, measurements.

Loudness stands in for the detector; what is said is what the fake pipeline understands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from audio.dialogue_events import Event, RoundOver
from audio.record import TurnRecord
from audio.waterfall import ORDER
from tests.ui.conftest import until
from tests.ui.fakes import RATE_HZ, REPLY, FakeConversation, FakePipeline, services
from ui.hearing import Hearing
from ui.listen_screen import Screen
from ui.protocol import MicrophoneFrame, Talk
from ui.services import Runtime
from ui.session import Session
from ui.visitors import Visitors

FRAME = 320


def frames(*parts: tuple[float, bool]) -> list[MicrophoneFrame]:
    """(seconds, loud) parts as frames of 20 ms of take 1."""
    samples = np.concatenate([np.full(int(s * 16000), 9000 if loud else 0) for s, loud in parts])
    pcm = samples.astype("<i2").tobytes()
    chunks = [pcm[at : at + 2 * FRAME] for at in range(0, len(pcm), 2 * FRAME)]
    return [MicrophoneFrame(1, number, chunk) for number, chunk in enumerate(chunks)]


class Listener:
    """A socket's client that plays what comes, as far as it is let."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.events: list[dict[str, Any]] = []
        self.samples: dict[int, int] = {}
        self._turn = 0
        self._lock = threading.Lock()
        session.attach(self._wake)
        session.set_sound(True)
        self.hearing = Hearing(session.dialogue)
        self.hearing.feed([Talk(1, True, "free")])

    def _wake(self) -> None:
        pass

    def receive(self) -> None:
        with self._lock:
            for message in self.session.outgoing():
                if isinstance(message, bytes):
                    self.samples[self._turn] += (len(message) - 8) // 2
                else:
                    self.events.append(message)
                    if message["type"] == "speech":
                        self._turn = message["turn"]
                        self.samples[self._turn] = 0

    def play(self, share: float = 1.0, **more: float) -> None:
        """Everything that came, or a share of it, was played."""
        self.receive()
        samples = int(self.samples.get(self._turn, 0) * share)
        self.session.played(self._turn, samples, done=False, **more)
        self.receive()

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        self.receive()
        return [event for event in self.events if event["type"] in kinds]

    def until(self, kind: str, count: int = 1) -> dict[str, Any]:
        until(self.session, lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    def say(self, *parts: tuple[float, bool]) -> None:
        self.hearing.feed(frames(*parts))


@pytest.fixture
def listener(session: Session) -> Listener:
    return Listener(session)


@pytest.fixture
def speaking(listener: Listener) -> Listener:
    """The reply to a spoken question can be heard."""
    listener.say((0.4, False), (0.8, True), (0.6, False))
    listener.until("speech")
    listener.until("done")
    listener.play(0.5)
    return listener


def contents(session: Session) -> list[str]:
    return [message["content"] for message in session.view().messages]


def test_a_hands_free_turn_from_the_first_sound_to_the_measurement(listener: Listener) -> None:
    listener.say((0.4, False), (0.8, True), (0.16, False))
    partial = listener.until("partial")
    listener.say((0.6, False))
    turn = listener.until("turn")["turn"]
    assert partial == {"type": "partial", "turn": turn, "text": "Why is the sky blue?"}
    listener.until("speech")
    listener.until("done")
    listener.play(0.5, waited_ms=40.0, ago_ms=5.0)
    measured = listener.until("measured")
    names = [stage["name"] for stage in measured["stages"]]
    assert names[0] == "endpointing" and names[-2:] == ["transport", "playback"]
    total = sum(stage["ms"] for stage in measured["stages"])
    assert measured["total_ms"] == pytest.approx(total, abs=0.01)
    assert {s["name"]: s["ms"] for s in measured["stages"]}["playback"] == pytest.approx(40, abs=1)
    order = [event["type"] for event in listener.of("hearing", "partial", "turn", "heard", "done")]
    assert order == ["hearing", "partial", "hearing", "turn", "heard", "done"]


def test_the_measured_stages_are_those_that_are_exported(
    speaking: Listener, session: Session
) -> None:
    measured = speaking.until("measured")
    assert session.ledger.turn(measured["turn"]).stages == measured["stages"]


def test_the_page_and_the_terminal_show_the_same_waterfall(
    listener: Listener, session: Session
) -> None:
    """Of one dialogue: on the socket, on the terminal's screen and in its JSON."""
    screen, records = Screen(lambda news: None), list[TurnRecord]()
    announcer = session.dialogue._announcer
    page = announcer._listener

    def both(event: Event) -> None:
        screen.take(event)
        if isinstance(event, RoundOver):
            records.append(event.record)
        page(event)

    announcer._listener = both
    listener.say((0.4, False), (0.8, True), (0.6, False))
    listener.until("speech")
    listener.until("done")
    listener.play(0.5, waited_ms=40.0, ago_ms=5.0)
    measured, shown = listener.until("measured"), screen.snapshot()

    def over() -> bool:
        listener.play()
        return bool(records)

    until(session, over)
    kept = records[0].as_dict()
    assert measured["stages"] == shown.stages
    assert [stage["name"] for stage in measured["stages"]] == [s["name"] for s in kept["stages"]]
    assert {stage["name"] for stage in measured["stages"]} <= set(ORDER)
    for stage, in_json in zip(measured["stages"], kept["stages"], strict=True):
        assert stage["ms"] == pytest.approx(in_json["ms"], abs=0.001)
    assert measured["total_ms"] == pytest.approx(shown.total_ms, abs=0.001)
    assert measured["total_ms"] == pytest.approx(kept["total_ms"], abs=0.001)


def test_words_that_were_not_all_are_taken_back(
    listener: Listener, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.transcript = "I would like to"
    listener.say((0.4, False), (0.6, True), (0.2, False))
    first = listener.until("partial")["turn"]
    pipeline.transcript = "I would like to know."
    listener.say((0.5, True), (0.8, False))
    assert listener.until("taken_back")["turn"] == first
    turn = listener.until("turn")["turn"]
    assert turn > first
    assert session.wait_idle(30)
    assert contents(session) == ["I would like to know.", REPLY]


def test_mm_hm_pauses_the_speech_and_it_goes_on(
    speaking: Listener, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.transcript = "Mm-hm."
    speaking.say((0.35, True))
    assert speaking.of("duck", "pause")[-1]["type"] == "pause"
    sent = dict(speaking.samples)
    speaking.play()  # what was ahead; nothing more is sent
    assert speaking.samples == sent
    speaking.say((0.8, False))
    assert speaking.until("ignored") == {"type": "ignored", "text": "Mm-hm.", "why": "back_channel"}
    speaking.until("resume")
    for _ in range(200):
        speaking.play()
    total = speaking.until("speech_end")["samples"]
    speaking.play()
    assert sum(speaking.samples.values()) == total == int(3.5 * RATE_HZ)
    until(session, lambda: not session.active)
    assert contents(session) == ["Why is the sky blue?", REPLY]


def test_stop_ends_the_speech_without_an_answer(
    speaking: Listener, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.transcript = "Stop."
    speaking.say((0.35, True), (0.8, False))
    assert speaking.until("ignored")["why"] == "stop"
    speaking.until("flush")
    assert not session.active and len(pipeline.turns) == 1
    assert contents(session)[-1].endswith(" …")
    assert REPLY.startswith(contents(session)[-1][:-2])


def test_an_interruption_flushes_and_is_answered(
    speaking: Listener, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.transcript = "And at night?"
    speaking.say((0.5, True), (0.8, False))
    speaking.until("turn", 2)
    until(session, lambda: len(pipeline.turns) == 2 and not session.view().running)
    assert [event["turn"] for event in speaking.of("flush")] == [speaking.of("turn")[0]["turn"]]
    said = contents(session)
    assert (
        said[0] == "Why is the sky blue?"
        and said[1].endswith(" …")
        and said[2:]
        == [
            "And at night?",
            REPLY,
        ]
    )


def test_who_goes_on_before_a_sound_has_asked_one_question(
    listener: Listener, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.pace.clear()  # the reply has not begun when the speaker goes on
    listener.say((0.4, False), (0.8, True), (0.6, False))
    listener.until("turn")
    pipeline.transcript = "I mean at noon."
    listener.say((0.7, True), (0.16, False))
    both = "Why is the sky blue? I mean at noon."
    # The first reply may never have begun: where it had not, nothing is to be stopped.
    until(session, lambda: any(turn._text == both for turn in pipeline.turns))
    pipeline.pace.set()
    listener.say((0.6, False))
    listener.until("turn", 2)
    assert session.wait_idle(30)
    until(session, lambda: len(contents(session)) == 2)
    assert contents(session) == [both, REPLY]
    assert [event["finish"] for event in listener.of("done")] == ["superseded", "complete"]


def test_turns_that_were_taken_back_do_not_count_against_the_visitor(
    listener: Listener, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.transcript = "and then,"
    for _ in range(30):  # more than a visitor may ask for at once
        listener.say((0.4, True), (0.15, False))
    pipeline.transcript = "And that is all."
    listener.say((0.4, True), (0.8, False))
    listener.until("turn")
    assert session.wait_idle(30)
    assert contents(session)[-1] == REPLY


def test_sound_switched_off_in_a_reply_leaves_its_words(
    speaking: Listener, session: Session
) -> None:
    session.set_sound(False)
    speaking.until("flush")
    until(session, lambda: not session.active)
    assert contents(session) == ["Why is the sky blue?", REPLY]


def test_a_socket_that_closes_mid_reply_cancels_it(
    listener: Listener, session: Session, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 4
    listener.say((0.4, False), (0.8, True), (0.6, False))
    until(session, lambda: contents(session)[-1:] == ["The sky is blue."])
    session.detach(listener._wake)
    assert session.wait_idle(30) and not session.active


def test_two_visitors_hear_their_own_answers_only(pipeline: FakePipeline) -> None:
    visitors = Visitors(Runtime(services(pipeline)))
    first, second = (Listener(visitors.open()) for _ in range(2))
    for listener in (first, second):
        listener.say((0.4, False), (0.8, True), (0.6, False))
    for listener in (first, second):
        listener.until("done")
        listener.until("speech")
        assert set(listener.samples) == {listener.of("turn")[0]["turn"]}
        assert contents(listener.session) == ["Why is the sky blue?", REPLY]
    visitors.close_all()


def test_an_engine_switched_mid_reply_answers_the_next_turn(
    pipeline: FakePipeline, make: Callable[..., Session]
) -> None:
    session = make()
    listener = Listener(session)
    pipeline.hold_after = 4
    listener.say((0.4, False), (0.8, True), (0.6, False))
    until(session, lambda: contents(session)[-1:] == ["The sky is blue."])
    session.set_engine("cpu")
    pipeline.hold_after = None
    pipeline.pace.set()
    assert session.wait_idle(30)
    listener.say((0.4, True), (0.5, True), (0.8, False))
    until(session, lambda: len(pipeline.turns) == 2)
    assert session.wait_idle(30)
    labels = [m["label"] for m in session.view().messages if m["role"] == "assistant"]
    assert len(labels) == 2 and labels[0] != labels[1]


@pytest.fixture
def make(pipeline: FakePipeline) -> Callable[..., Session]:
    from tests.ui.fakes import FakeEntry

    def made() -> Session:
        engines = (FakeEntry("eager", "Kernel per op"), FakeEntry("cpu", "Resident"))
        return Visitors(Runtime(services(pipeline, engines, FakeConversation))).open()

    return made
