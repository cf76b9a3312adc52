"""A recording is one turn, whatever pauses it has. Stand-ins for the models; work takes no time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from audio.endpointing import speech_end
from audio.frames import STT_RATE_HZ
from audio.rounds import Parts, Request
from audio.turn import Turn
from engine.errors import UnpausedError
from tests.audio.people import REPLY, VOICE_HZ, Loudness, Speech, Talk, ToneVoice
from ui.file_turn import FileTurn, Outcome

QUESTION = "Why is the sky blue?"
STAGES = ["endpointing", "transcription", "prefill", "first_clause", "synthesis"]
OPTIONS = argparse.Namespace(engine="scripted", model="none")


class Assistant:
    """As `ui.listen_assistant.Assistant`: answers from a table."""

    def __init__(self, reply: str = REPLY, fault: Exception | None = None) -> None:
        self.say, self.talk, self._fault = Speech(), Talk(reply_text=reply), fault
        self.transcribe, self.judge = self.say.transcribe, self.say.judge
        self.transcribe_s = 0.0

    @contextmanager
    def open_turn(self, request: Request) -> Iterator[Parts]:
        yield Parts(self.talk, self._begin, "scripted")

    def _begin(self, text: str) -> Turn:
        if self._fault is not None:
            raise self._fault
        return Turn(self.talk.reply, ToneVoice(), text=text)  # type: ignore[arg-type]


def quiet(seconds: float) -> np.ndarray:
    return np.zeros(int(seconds * STT_RATE_HZ), np.float32)


def taken(assistant: Any, *sounds: np.ndarray, show: bool = False) -> Outcome:
    samples = np.concatenate(sounds)
    end = speech_end(samples, Loudness().probability)
    assert end is not None
    return FileTurn(assistant, Loudness(), show).run(samples, end)


def test_a_recording_is_answered_and_measured_as_on_the_page() -> None:
    assistant = Assistant()
    outcome = taken(assistant, quiet(0.5), assistant.say(QUESTION), quiet(1.0))
    assert (outcome.transcript, outcome.reply) == (QUESTION, REPLY)
    assert assistant.talk.asked == [QUESTION]
    names = [stage.name for stage in outcome.stages]
    assert [name for name in names if name not in ("queue", "held")] == [
        *STAGES,
        "transport",
        "playback",
    ]
    assert outcome.first_audio_ms == pytest.approx(sum(s.ms for s in outcome.stages), abs=1)
    assert outcome.rate_hz == VOICE_HZ
    spoken = [len(ToneVoice().synthesize(part)) for part in REPLY.replace(". ", ".\n").split("\n")]
    assert sum(map(len, outcome.speech)) == pytest.approx(sum(spoken), rel=0.05)


def test_what_is_computed_takes_its_time() -> None:
    assistant = Assistant()

    def slowly(samples: np.ndarray) -> str:
        time.sleep(0.3)
        return assistant.say.transcribe(samples)

    assistant.transcribe = slowly
    outcome = taken(assistant, quiet(0.5), assistant.say(QUESTION), quiet(1.0))
    assert {stage.name: stage.ms for stage in outcome.stages}["transcription"] >= 299


def test_utterances_with_long_pauses_are_one_turn() -> None:
    assistant = Assistant()
    parts = ("I have a question.", "It is about the sky.", QUESTION)
    sounds = [sound for part in parts for sound in (assistant.say(part), quiet(2.5))]
    outcome = taken(assistant, quiet(0.5), *sounds)
    assert outcome.transcript == " ".join(parts)
    assert assistant.talk.asked[-1] == " ".join(parts) and outcome.reply == REPLY


def test_a_recording_that_ends_with_the_last_word_is_answered() -> None:
    assistant = Assistant()
    outcome = taken(assistant, quiet(0.5), assistant.say(QUESTION))
    assert outcome.transcript == QUESTION and outcome.first_audio_ms is not None


def test_noise_without_words_is_nothing() -> None:
    assistant = Assistant()
    outcome = taken(assistant, quiet(0.5), assistant.say("...", 0.8), quiet(1.0))
    assert outcome.as_dict(OPTIONS)["transcript"] == ""
    assert (outcome.reply, outcome.speech, outcome.first_audio_ms) == ("", [], None)


def test_a_cough_after_the_question_changes_nothing() -> None:
    assistant = Assistant()
    cough = assistant.say("...", 0.3)
    outcome = taken(assistant, assistant.say(QUESTION), quiet(1.0), cough, quiet(1.0))
    assert (outcome.transcript, outcome.reply) == (QUESTION, REPLY)
    assert outcome.first_audio_ms is not None


@pytest.mark.parametrize("reply", ["", "🙂"])
def test_a_reply_without_words_closes_the_turn(reply: str) -> None:
    assistant = Assistant(reply)
    outcome = taken(assistant, quiet(0.5), assistant.say(QUESTION), quiet(0.5))
    assert (outcome.transcript, outcome.reply, outcome.speech) == (QUESTION, reply, [])
    assert outcome.first_audio_ms is None


def test_a_fault_is_raised_in_its_words() -> None:
    assistant = Assistant(fault=UnpausedError("the engine has gone"))
    with pytest.raises(UnpausedError, match="the engine has gone"):
        taken(assistant, quiet(0.5), assistant.say(QUESTION), quiet(0.5))


@pytest.mark.parametrize("show", [True, False])
def test_it_is_shown_once(show: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assistant = Assistant()
    taken(assistant, assistant.say("Well."), quiet(2.0), assistant.say(QUESTION), show=show)
    shown = f"You: Well. {QUESTION}\nUnpaused: {REPLY}\n"
    assert capsys.readouterr().out == (shown if show else "")
