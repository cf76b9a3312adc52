"""A whole voice turn with the real models: from a file that holds a question to audible words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from assets.resolver import resolve
from audio.endpointing import speech_end
from audio.events import Speech, TurnDone
from audio.frames import STT_RATE_HZ, Resampler, from_pcm16, read_audio
from audio.pipeline import VoicePipeline
from audio.smart_turn import SmartTurn
from audio.stt import Transcriber
from audio.tts import Synthesizer
from audio.vad import StreamingVad
from engine.base import DecodeEngine
from engine.conversation import Conversation
from engine.sampling import SamplingParams
from engine.setup import open_engine, open_model
from tests.audio.conftest import Say
from tests.audio.words import errors
from ui.file_turn import FileTurn, Outcome
from ui.listen_assistant import Assistant

pytestmark = pytest.mark.real

QUESTION = "What is the capital of France?"
PARAMS = SamplingParams(max_tokens=48)
Take = Callable[[np.ndarray], "Outcome | None"]


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> DecodeEngine:
    return open_engine("eager", open_model("smollm2-135m-instruct", smollm2_path), speaking=True)


@pytest.fixture(scope="module")
def pipeline(transcriber: Transcriber, synthesizer: Synthesizer) -> VoicePipeline:
    pipeline = VoicePipeline(transcriber, synthesizer)
    pipeline.warm()
    return pipeline


@pytest.fixture
def take(pipeline: VoicePipeline, engine: DecodeEngine) -> Take:
    """What comes of float32 [n] at 16 kHz; None without speech."""

    def taken(samples: np.ndarray) -> Outcome | None:
        end = speech_end(samples, StreamingVad().probability)
        if end is None:
            return None
        judge = SmartTurn(resolve("turn")).probability
        conversation = Conversation(engine.model, enable_thinking=False)
        engines = {engine.name: lambda: engine}
        assistant = Assistant(conversation, engines, engine.name, PARAMS, pipeline, judge)
        return FileTurn(assistant, StreamingVad(), show=False).run(samples, end)

    return taken


def pause(seconds: float) -> np.ndarray:
    noise = np.random.default_rng(5).standard_normal(int(seconds * STT_RATE_HZ))
    return (noise * 3e-4).astype(np.float32)


@pytest.mark.parametrize(
    "rate_hz, channels, subtype",
    [(8000, 1, "PCM_16"), (44100, 2, "PCM_16"), (48000, 2, "FLOAT")],
    ids=["8_khz", "44_1_khz_stereo", "48_khz_stereo_float"],
)
def test_8_44_1_and_48_khz_stereo_and_float_files_are_answered(
    take: Take, transcriber: Transcriber, say: Say, tmp_path: Path, rate_hz: int, channels: int,
    subtype: str,
) -> None:  # fmt: skip
    spoken = np.concatenate([pause(0.7), say(QUESTION), pause(1.0)])
    spoken = Resampler(STT_RATE_HZ, rate_hz).push(spoken, last=True)
    path = tmp_path / "question.wav"
    soundfile.write(path, np.stack([spoken] * channels, axis=1), rate_hz, subtype=subtype)
    outcome = take(read_audio(path))
    assert outcome is not None and "Paris" in outcome.reply
    assert errors(QUESTION, outcome.transcript) <= (1 if rate_hz == 8000 else 0)
    names = [stage.name for stage in outcome.stages]
    assert names[:2] == ["endpointing", "transcription"] and names[-1] == "playback"
    assert outcome.first_audio_ms == pytest.approx(sum(s.ms for s in outcome.stages), abs=5)
    said = from_pcm16(np.concatenate(outcome.speech))
    said = Resampler(outcome.rate_hz, STT_RATE_HZ).push(said, last=True)
    heard = transcriber.transcribe(said).text
    assert errors(outcome.reply, heard) <= 1 + len(outcome.reply.split()) // 3, heard


def test_a_question_with_a_pause_is_one_turn(take: Take, say: Say) -> None:
    parts = ["I would like to know", "what the weather will be like in London."]
    outcome = take(np.concatenate([say(parts[0]), pause(0.9), say(parts[1]), pause(1.0)]))
    assert outcome is not None
    assert errors(" ".join(parts), outcome.transcript) <= 2


def test_two_questions_far_apart_are_one_turn(take: Take, say: Say) -> None:
    parts = ["What is the capital of Italy?", QUESTION]
    outcome = take(np.concatenate([say(parts[0]), pause(3.0), say(parts[1]), pause(1.0)]))
    assert outcome is not None and outcome.first_audio_ms is not None
    assert errors(" ".join(parts), outcome.transcript) == 0


def test_a_file_that_ends_with_the_last_word(take: Take, say: Say) -> None:
    question = say(QUESTION)
    audible = np.flatnonzero(np.abs(question) > 0.01)
    outcome = take(question[: int(audible[-1])])
    assert outcome is not None
    assert errors(QUESTION, outcome.transcript) == 0


@pytest.mark.parametrize("seconds", [0.0, 0.01, 5.0])
def test_a_file_without_speech_is_no_turn(take: Take, seconds: float) -> None:
    assert take(pause(seconds)) is None


def test_stop_in_the_middle_of_the_answer(pipeline: VoicePipeline, engine: DecodeEngine) -> None:
    conversation = Conversation(engine.model)
    params = SamplingParams(max_tokens=400)
    question = "Tell me a long story about the sea."
    turn = pipeline.text_turn(question, conversation, engine, params)
    events = []
    for event in turn:
        events.append(event)
        if isinstance(event, Speech):
            turn.stop()
    done = events[-1]
    assert isinstance(done, TurnDone) and done.finish == "stopped"
    assert done.metrics is not None and done.metrics.tokens < 400
    assert sum(isinstance(event, Speech) for event in events) == 1
    assert conversation.messages[-1]["content"] == done.reply
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("turn_")]
    conversation.keep_heard("Once upon a time")
    again = pipeline.text_turn("And then?", conversation, engine, PARAMS, speak=False)
    assert isinstance(list(again)[-1], TurnDone)


def test_a_typed_question_is_answered_without_a_voice(
    pipeline: VoicePipeline, engine: DecodeEngine
) -> None:
    turn = pipeline.text_turn(QUESTION, Conversation(engine.model), engine, PARAMS, speak=False)
    done = list(turn)[-1]
    assert isinstance(done, TurnDone) and "Paris" in done.reply
    assert [stage.name for stage in done.stages] == ["prefill"]
