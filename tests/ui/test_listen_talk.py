"""Keys, engines and hidden tokens in a talk with a tiny model on two real engines."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from audio.dialogue import Dialogue
from engine.conversation import Conversation
from engine.eager import EagerEngine
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.weights import load_model
from tests.engine import tiny
from ui.listen_assistant import HIDDEN_STEPS, Assistant
from ui.listen_talk import Controls, Talk

WAIT_S = 20.0


class Rival(EagerEngine):
    """The same engine under another name, as far as a talk can tell."""

    name = "graph"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    reference = tiny.make_reference("llama", max_position_embeddings=1024)
    folder = tiny.save(reference, tmp_path_factory.mktemp("tiny") / "talk")
    return load_model(folder, dtype=torch.float32)


@pytest.fixture
def assistant(model: Model) -> Assistant:
    engines: dict[str, Callable] = {
        "eager": lambda: EagerEngine(model, 1),
        "graph": lambda: Rival(model, 1),
    }
    params = SamplingParams(max_tokens=12)
    return Assistant(Conversation(model, 512), engines, "eager", params)


class Desk:
    """A talk without sound whose keys a test presses."""

    def __init__(self, assistant: Assistant) -> None:
        self.talk = Talk(argparse.Namespace(json=True), assistant, "", typed=True)
        self.talk.dialogue.speak = False
        self.called: list[Callable[[], None]] = []
        self.controls = Controls(self.talk, self.called.append)
        self._replies = 0

    def ask(self, text: str) -> str:
        self.talk.dialogue.say(text)
        return self.reply()

    def reply(self) -> str:
        """The next one that is over."""
        self._replies += 1
        end = time.monotonic() + WAIT_S
        while len(self.talk.records) < self._replies:
            assert time.monotonic() < end
            time.sleep(0.005)
        return self.talk.records[-1].reply


@pytest.fixture
def desk(assistant: Assistant) -> Desk:
    return Desk(assistant)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_e_switches_the_engine_of_the_turns_to_come(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.ask("hello")
    desk.controls.press("e")
    assert "graph" in told(capsys) and desk.talk.screen.snapshot().engine == "graph"
    desk.ask("hello again")
    assert [record.engine for record in desk.talk.records] == ["eager", "graph"]
    desk.controls.press("E")
    assert desk.talk.assistant.engine_name == "eager"


def test_r_says_the_last_answer_again_on_another_engine_and_compares(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    first = desk.ask("hello")
    before = list(desk.talk.assistant.conversation.messages)
    desk.controls.press("r")
    assert desk.reply() == first
    assert [record.engine for record in desk.talk.records] == ["eager", "graph"]
    assert desk.talk.assistant.conversation.messages == before  # it stays out of it
    assert "every token the same" in told(capsys)


def test_again_is_on_the_chosen_engine_where_that_did_not_answer(desk: Desk) -> None:
    desk.ask("hello")
    desk.controls.press("e")
    desk.controls.press("r")
    desk.reply()
    assert [record.engine for record in desk.talk.records] == ["eager", "graph"]


def test_r_before_any_question_says_so(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.controls.press("r")
    assert "Ask something first" in told(capsys) and not desk.talk.records


def test_e_with_one_engine_says_so(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    engines: dict[str, Callable] = {"eager": lambda: EagerEngine(model, 1)}
    only = Assistant(Conversation(model, 512), engines, "eager", SamplingParams())
    Desk(only).controls.press("e")
    assert "Eager is the only engine" in told(capsys)


def test_t_walks_through_hidden_tokens(desk: Desk) -> None:
    for count in (*HIDDEN_STEPS[1:], HIDDEN_STEPS[0], HIDDEN_STEPS[1]):
        desk.controls.press("t")
        assert desk.talk.screen.snapshot().hidden_tokens == count
    desk.ask("hello")
    metrics = desk.talk.records[-1].metrics
    assert metrics is not None and metrics["hidden_tokens"] == HIDDEN_STEPS[1]


def test_space_is_push_to_talk_on_the_microphones_thread(desk: Desk) -> None:
    dialogue: Dialogue = desk.talk.dialogue
    desk.controls.press(" ")
    assert desk.called == [dialogue.press]
    assert desk.talk.screen.snapshot().status == "talk now"
    time.sleep(0.2)
    desk.controls.tick()
    assert len(desk.called) == 1  # a tap: it goes on until the next
    desk.controls.press(" ")
    time.sleep(0.2)
    desk.controls.tick()
    assert desk.called == [dialogue.press, dialogue.release]


def test_q_ends_it_and_other_keys_do_nothing(desk: Desk) -> None:
    for key in ("x", "\n", "é", "\x00", ""):
        desk.controls.press(key)
    assert not desk.talk.over.is_set()
    desk.controls.press("q")
    assert desk.talk.over.is_set()


def test_json_is_one_line_with_every_turn(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.ask("hello")
    desk.ask("and you")
    desk.talk.finish(missed_ms=0.0)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [turn["finish"] for turn in last["turns"]] == ["complete", "complete"]
    assert last["missed_ms"] == 0.0
    assert {"transcript", "reply", "stages", "metrics", "engine"} <= set(last["turns"][0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_a_second_one_takes_its_usual_effect(
    number: signal.Signals, assistant: Assistant
) -> None:
    before = signal.getsignal(number)
    with Talk(argparse.Namespace(json=True), assistant, "") as talk:
        os.kill(os.getpid(), number)
        assert talk.over.wait(WAIT_S)
        assert signal.getsignal(number) == before
    assert signal.getsignal(number) == before


def test_a_talk_off_the_main_thread_leaves_signals_alone(assistant: Assistant) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def run() -> None:
        with Talk(argparse.Namespace(json=True), assistant, ""):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert seen == [before]


def test_the_sound_of_past_turns_is_let_go(desk: Desk, tmp_path: Path) -> None:
    desk.ask("hello")
    assert all(not record.answer for record in desk.talk.records)


def test_a_reader_that_has_gone_ends_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(desk.talk._view, "tell", gone)
    desk.ask("hello")
    assert desk.talk.over.is_set()
    with pytest.raises(BrokenPipeError):
        desk.talk.finish()
