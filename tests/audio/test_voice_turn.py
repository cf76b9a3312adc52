"""A whole voice turn with the real models: from a file that holds a question to audible words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from audio.endpointing import Heard, listen
from audio.frames import STT_RATE_HZ, Resampler, from_pcm16, read_audio
from audio.pipeline import Delta, Event, Speech, Transcribed, TurnDone, VoicePipeline
from audio.stt import Transcriber
from audio.tts import Synthesizer
from audio.vad import StreamingVad
from engine.base import DecodeEngine
from engine.conversation import Conversation
from engine.sampling import SamplingParams
from engine.setup import open_engine, open_model
from tests.audio.conftest import Say
from tests.audio.words import errors

pytestmark = pytest.mark.real

QUESTION = "What is the capital of France?"
PARAMS = SamplingParams(max_tokens=48)


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> DecodeEngine:
    return open_engine("eager", open_model("smollm2-135m-instruct", smollm2_path), speaking=True)


@pytest.fixture(scope="module")
def pipeline(transcriber: Transcriber, synthesizer: Synthesizer) -> VoicePipeline:
    pipeline = VoicePipeline(transcriber, synthesizer)
    pipeline.warm()
    return pipeline


def pause(seconds: float) -> np.ndarray:
    noise = np.random.default_rng(5).standard_normal(int(seconds * STT_RATE_HZ))
    return (noise * 3e-4).astype(np.float32)


def hear(samples: np.ndarray) -> Heard | None:
    return listen(samples, StreamingVad().probability)


def answer(pipeline: VoicePipeline, engine: DecodeEngine, heard: Heard) -> list[Event]:
    conversation = Conversation(engine.model)
    turn = pipeline.voice_turn(heard.samples, conversation, engine, PARAMS, heard.endpointing_ms)
    events = list(turn)
    assert conversation.messages[-1]["role"] == "assistant"
    return events


@pytest.mark.parametrize("rate_hz, channels", [(16000, 1), (8000, 1), (48000, 2)])
def test_a_question_from_a_file_is_answered_aloud(
    pipeline: VoicePipeline,
    engine: DecodeEngine,
    transcriber: Transcriber,
    say: Say,
    save_wav: Callable[[np.ndarray, int], Path],
    rate_hz: int,
    channels: int,
) -> None:
    spoken = np.concatenate([pause(0.7), say(QUESTION), pause(1.0)])
    spoken = Resampler(STT_RATE_HZ, rate_hz).push(spoken, last=True)
    heard = hear(read_audio(save_wav(np.stack([spoken] * channels, axis=1), rate_hz)))
    assert heard is not None and 450 <= heard.endpointing_ms <= 800
    events = answer(pipeline, engine, heard)
    assert isinstance(events[0], Transcribed)
    assert errors(QUESTION, events[0].text) <= (1 if rate_hz == 8000 else 0)
    done = events[-1]
    assert isinstance(done, TurnDone) and done.finish == "complete"
    assert "Paris" in done.reply
    assert "".join(event.text for event in events if isinstance(event, Delta)) == done.reply
    assert [stage.name for stage in done.stages] == [
        "endpointing",
        "transcription",
        "prefill",
        "first_clause",
        "synthesis",
    ]
    speech = [event for event in events if isinstance(event, Speech)]
    pcm = np.concatenate([event.pcm for event in speech])
    resampler = Resampler(speech[0].rate_hz, STT_RATE_HZ)
    said = transcriber.transcribe(resampler.push(from_pcm16(pcm), last=True)).text
    reply = " ".join(event.text for event in speech)
    assert errors(reply, said) <= 1 + len(reply.split()) // 3, (reply, said)


def test_a_question_with_a_pause_is_one_turn(
    pipeline: VoicePipeline, transcriber: Transcriber, say: Say
) -> None:
    parts = ["I would like to know", "what the weather will be like in London."]
    samples = np.concatenate([say(parts[0]), pause(0.9), say(parts[1]), pause(1.0)])
    heard = hear(samples)
    assert heard is not None
    assert errors(" ".join(parts), transcriber.transcribe(heard.samples).text) <= 2


def test_a_file_that_ends_with_the_last_word(transcriber: Transcriber, say: Say) -> None:
    question = say(QUESTION)
    audible = np.flatnonzero(np.abs(question) > 0.01)
    heard = hear(question[: int(audible[-1])])
    assert heard is not None and 450 <= heard.endpointing_ms <= 800
    assert errors(QUESTION, transcriber.transcribe(heard.samples).text) == 0


@pytest.mark.parametrize("seconds", [0.0, 0.01, 5.0])
def test_a_file_without_speech_is_no_turn(seconds: float) -> None:
    assert hear(pause(seconds)) is None


def test_stop_in_the_middle_of_the_answer(
    pipeline: VoicePipeline, engine: DecodeEngine, say: Say
) -> None:
    conversation = Conversation(engine.model)
    params = SamplingParams(max_tokens=400)
    turn = pipeline.voice_turn(
        say("Tell me a long story about the sea."), conversation, engine, params, 500.0
    )
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
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("turn")]
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
