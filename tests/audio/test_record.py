"""A turn to keep: figures and WAV."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import soundfile

from audio.events import Stage
from audio.record import TurnRecord

RATE = 22050


def record() -> TurnRecord:
    return TurnRecord(
        generation=3,
        kind="voice",
        transcript="Why?",
        reply="Because of air.",
        heard="Because",
        finish="interrupted",
        engine="eager",
        metrics={"tokens": 4},
        stages=[Stage("endpointing", 150.0), Stage("transcription", 100.0)],
        total_ms=250.0,
        rate_hz=RATE,
        speech_end_sample=16000,
        question=np.full(20000, 5000, np.int16),
        answer=[np.full(1000, 9000, np.int16), np.full(500, 9000, np.int16)],
    )


def test_json_holds_everything_but_the_sound() -> None:
    told = json.loads(json.dumps(record().as_dict()))
    assert told["transcript"] == "Why?" and told["heard"] == "Because"
    assert told["stages"] == [
        {"name": "endpointing", "ms": 150.0},
        {"name": "transcription", "ms": 100.0},
    ]
    assert sum(stage["ms"] for stage in told["stages"]) == told["total_ms"]


def test_wav_has_the_speaker_left_and_the_answer_right_as_late_as_it_was() -> None:
    both, rate_hz = soundfile.read(io.BytesIO(record().wav()), dtype="int16")
    assert rate_hz == RATE and both.shape[1] == 2
    right = np.flatnonzero(both[:, 1])
    assert right[0] == pytest.approx((1.0 + 0.25) * RATE, abs=2) and len(right) == 1500
    left = np.flatnonzero(np.abs(both[:, 0]) > 1000)
    assert left[-1] == pytest.approx(20000 / 16000 * RATE, abs=30)


def test_a_turn_without_sound_has_a_wav_of_nothing() -> None:
    both, rate_hz = soundfile.read(io.BytesIO(TurnRecord(1, "text").wav()), dtype="int16")
    assert len(both) == 0 and rate_hz == 16000


def test_what_the_wav_holds_is_told() -> None:
    assert record().sound() == {
        "left": "speaker",
        "right": "answer",
        "rate_hz": RATE,
        "speech_ends_s": 1.0,
        "answer_begins_s": 1.25,
        "answer_s": round(1500 / RATE, 3),
    }
    assert TurnRecord(1, "text").sound() is None
