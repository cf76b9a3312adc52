"""Stand-ins for the models of a turn, instant and scripted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audio.pipeline import VoicePipeline
from audio.tts import Cancel
from audio.turn import Turn
from engine.base import Token
from engine.generate import TextDelta
from engine.metrics import ReplyMetrics
from engine.sampling import SamplingParams

RATE_HZ = 1000
WAIT_S = 30.0  # for what happens at once; only a failing test takes it


class Step:
    """A place in the script at which a test meets the thread that is there."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def meet(self) -> None:
        self.reached.set()
        assert self.go_on.wait(WAIT_S)


Script = list["str | TextDelta | Exception | Step"]


class FakeReply:
    """Says `script` a delta at a time; exceptions are raised and steps waited for on the way."""

    def __init__(self, conversation: FakeConversation, user_text: str) -> None:
        self.user_text, self.text = user_text, ""
        self.stopped = threading.Event()
        self.ended = False
        self._conversation = conversation
        self._metrics = ReplyMetrics(engine="fake", start_ns=0)

    def __iter__(self) -> Iterator[TextDelta]:
        try:
            for position, part in enumerate(self._conversation.script):
                if isinstance(part, Exception):
                    raise part
                if isinstance(part, Step):
                    part.meet()
                    continue
                if self.stopped.is_set():
                    break
                delta = part if isinstance(part, TextDelta) else _delta(part, position)
                if not delta.thinking:
                    self.text += delta.text
                self._metrics.token_times_ns.append((position + 1) * 1_000_000)
                yield delta
        finally:
            self.ended = True
            self._conversation.said.append(self.text)

    def stop(self) -> None:
        self.stopped.set()

    def metrics(self) -> ReplyMetrics:
        return self._metrics


def _delta(text: str, position: int) -> TextDelta:
    return TextDelta(text, Token(position, (position + 1) * 1_000_000, -0.1))


@dataclass
class FakeConversation:
    script: Script
    refusal: Exception | None = None
    said: list[str] = field(default_factory=list)
    replies: list[FakeReply] = field(default_factory=list)

    def reply(
        self, engine: object, user_text: str, params: SamplingParams, joins: bool = True
    ) -> FakeReply:
        if self.refusal is not None:
            raise self.refusal
        self.replies.append(FakeReply(self, user_text))
        return self.replies[-1]


@dataclass
class FakeSynthesizer:
    """One sample for each character."""

    rate_hz: int = RATE_HZ
    step: Step | None = None
    fault: Exception | None = None
    spoken: list[str] = field(default_factory=list)
    niceness: list[int] = field(default_factory=list)
    notice: Callable[[], int] | None = None

    def warm(self) -> None:
        pass

    def synthesize(self, text: str, cancel: Cancel | None = None) -> np.ndarray:
        self.spoken.append(text)
        if self.notice is not None:
            self.niceness.append(self.notice())
        if self.step is not None:
            self.step.meet()
        if self.fault is not None:
            raise self.fault
        cancelled = cancel is not None and cancel.is_set
        return np.ones(0 if cancelled else len(text), np.int16)


@dataclass
class Parts:
    """A pipeline of fakes, typed as what it stands for."""

    conversation: FakeConversation
    synthesizer: FakeSynthesizer = field(default_factory=FakeSynthesizer)
    engine: Any = None

    def text_turn(self, text: str = "Hello", speak: bool = True) -> Turn:
        pipeline = VoicePipeline(None, self.synthesizer)  # type: ignore[arg-type]
        return pipeline.text_turn(
            text,
            self.conversation,  # type: ignore[arg-type]
            self.engine,
            SamplingParams(),
            speak,
        )
