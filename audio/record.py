"""One finished turn, to keep and to hand out: its figures as JSON, its sound as WAV."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import soundfile

from audio.events import Stage
from audio.frames import STT_RATE_HZ, Resampler, to_pcm16


@dataclass(slots=True)
class TurnRecord:
    """What a turn was. Sound is kept as int16; `question` at 16 kHz, `answer` at `rate_hz`.

    `speech_end_sample` is where in `question` the speaker was last audible. `stages` and
    `total_ms` are those of `audio.waterfall`.
    """

    generation: int
    kind: str
    transcript: str = ""
    reply: str = ""
    heard: str = ""
    finish: str = ""
    engine: str = ""
    metrics: dict[str, Any] | None = None
    stages: list[Stage] = field(default_factory=list)
    total_ms: float | None = None
    rate_hz: int = 0
    speech_end_sample: int = 0
    question: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int16))
    answer: list[np.ndarray] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the sound, JSON-ready."""
        return {
            "generation": self.generation,
            "kind": self.kind,
            "transcript": self.transcript,
            "reply": self.reply,
            "heard": self.heard,
            "finish": self.finish,
            "engine": self.engine,
            "metrics": self.metrics,
            "stages": [{"name": stage.name, "ms": round(stage.ms, 3)} for stage in self.stages],
            "total_ms": None if self.total_ms is None else round(self.total_ms, 3),
        }

    def sound(self) -> dict[str, Any] | None:
        """What `wav` holds and when, JSON-ready; None where there is no sound."""
        if not len(self.question) and not self.answer:
            return None
        rate_hz = self.rate_hz or STT_RATE_HZ
        return {
            "left": "speaker",
            "right": "answer",
            "rate_hz": rate_hz,
            "speech_ends_s": round(self.speech_end_sample / STT_RATE_HZ, 3),
            "answer_begins_s": round(self._answer_offset(rate_hz) / rate_hz, 3),
            "answer_s": round(sum(map(len, self.answer)) / rate_hz, 3),
        }

    def wav(self) -> bytes:
        """A stereo WAV: the speaker on the left, the answer on the right, as it was for who
        listened: the silence between them is the one that was measured.
        """
        rate_hz = self.rate_hz or STT_RATE_HZ
        left = self._question_at(rate_hz)
        right = np.concatenate([*self.answer, np.zeros(0, np.int16)])
        offset = self._answer_offset(rate_hz)
        both = np.zeros((max(len(left), offset + len(right)), 2), np.int16)
        both[: len(left), 0] = left
        both[offset : offset + len(right), 1] = right
        buffer = io.BytesIO()
        soundfile.write(buffer, both, rate_hz, format="WAV", subtype="PCM_16")
        return buffer.getvalue()

    def _question_at(self, rate_hz: int) -> np.ndarray:
        if rate_hz == STT_RATE_HZ or not len(self.question):
            return self.question
        samples = self.question.astype(np.float32) / 32768
        return to_pcm16(Resampler(STT_RATE_HZ, rate_hz).push(samples, last=True))

    def _answer_offset(self, rate_hz: int) -> int:
        end_s = self.speech_end_sample / STT_RATE_HZ
        return int((end_s + (self.total_ms or 0.0) / 1000) * rate_hz)
