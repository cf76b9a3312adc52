"""Stand-ins for the models behind the page: real interfaces, instant answers, a tone for a voice.

They keep the contracts of `audio.pipeline` and `engine.conversation`, so that what is tested with
them is the page, the socket and the session, and nothing is waited for that is not theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from audio.endpointing import Endpointer
from audio.pipeline import Delta, Finish, Speech, Stage, Transcribed, TurnDone, TurnFailed
from engine.kv_cache import KVCache
from engine.metrics import ReplyMetrics
from engine.sampling import SamplingParams
from ui.services import Services

RATE_HZ = 22050
REPLY = "The sky is blue. Short waves of light are scattered more than long ones."


@dataclass(frozen=True)
class FakeEntry:
    name: str
    label: str
    summary: str = ""
    reason: str | None = None

    def unavailable(self) -> str | None:
        return self.reason


@dataclass
class FakeEngine:
    name: str


class FakeConversation:
    def __init__(self) -> None:
        self.messages: list[dict[str, str]] = []
        self.cache = KVCache(1, 1, 8, 2, torch.float32)

    def keep_heard(self, text: str) -> None:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages[-1]["content"] = text

    def clear(self) -> None:
        self.messages.clear()


class FakeTurn:
    """Speaks `words` one per token. `gate`, when given, is waited for before every word."""

    def __init__(
        self,
        conversation: FakeConversation,
        text: str,
        pipeline: FakePipeline,
        transcript: str | None,
        speak: bool,
        endpointing_ms: float,
    ) -> None:
        self._conversation, self._text, self._pipeline = conversation, text, pipeline
        self._transcript, self._speak = transcript, speak
        self._endpointing_ms = endpointing_ms
        self._stopped = threading.Event()
        self._metrics = ReplyMetrics(
            engine="eager", model="fake", prompt_tokens=9, trimmed_turns=pipeline.trimmed_turns
        )

    def stop(self) -> None:
        self._stopped.set()

    def metrics(self) -> ReplyMetrics | None:
        return self._metrics if self._metrics.tokens else None

    def __iter__(self) -> Iterator[Any]:
        pipeline = self._pipeline
        if self._transcript is not None:
            yield Transcribed(self._transcript, 20.0)
            if not self._transcript:
                yield TurnDone("", None, [], "no_speech")
                return
        if pipeline.fails:
            yield TurnFailed(pipeline.fails)
            return
        said = ""
        for count, word in enumerate(pipeline.reply.split(" ")):
            pipeline.wait(self._stopped)
            if self._stopped.is_set():
                break
            if count + 1 == pipeline.hold_after:
                pipeline.pace.clear()  # before the word is out: whoever sees it may set it again
            self._metrics.token_times_ns.append(pipeline.tick())
            piece = word if not said else " " + word
            said += piece
            yield Delta(piece, None)
            if word.endswith((".", "!", "?")) and self._speak:
                clause = said.split(". ")[-1]
                yield Speech(tone(0.25 * len(clause.split())), RATE_HZ, clause)
        self._conversation.messages += [
            {"role": "user", "content": self._text or self._transcript or ""},
            {"role": "assistant", "content": said},
        ]
        stages = [Stage("prefill", 61.0), Stage("first_clause", 142.0), Stage("synthesis", 88.0)]
        if self._transcript is not None:
            stages[:0] = [Stage("endpointing", self._endpointing_ms), Stage("transcription", 96.0)]
        finish: Finish = "stopped" if self._stopped.is_set() else "complete"
        yield TurnDone(said, self._metrics, stages, finish)


@dataclass
class FakePipeline:
    """`pace` cleared holds every turn before its next word, until it is set or the turn stops.

    `hold_after` so many words a turn clears it by itself.
    """

    reply: str = REPLY
    transcript: str = "Why is the sky blue?"
    fails: str = ""
    trimmed_turns: int = 0
    word_s: float = 0.0
    hold_after: int | None = None
    pace: threading.Event = field(default_factory=threading.Event)
    turns: list[FakeTurn] = field(default_factory=list)
    heard: list[np.ndarray] = field(default_factory=list)
    clock_ns: int = 0

    def __post_init__(self) -> None:
        self.pace.set()

    def warm(self) -> None:
        pass

    def wait(self, stopped: threading.Event) -> None:
        if self.word_s:
            stopped.wait(self.word_s)
        while not (stopped.is_set() or self.pace.wait(0.02)):
            pass

    def tick(self) -> int:
        self.clock_ns += 18_400_000
        return self.clock_ns

    def text_turn(
        self, text: str, conversation: Any, engine: Any, params: SamplingParams, speak: bool = True
    ) -> FakeTurn:
        return self._turn(conversation, text, None, speak, 0.0)

    def voice_turn(
        self,
        samples: np.ndarray,
        conversation: Any,
        engine: Any,
        params: SamplingParams,
        endpointing_ms: float,
        speak: bool = True,
    ) -> FakeTurn:
        self.heard.append(samples)
        return self._turn(conversation, "", self.transcript, speak, endpointing_ms)

    def _turn(self, conversation: Any, text: str, transcript: str | None, *rest: Any) -> FakeTurn:
        turn = FakeTurn(conversation, text, self, transcript, *rest)
        self.turns.append(turn)
        return turn


class LoudnessVad:
    """Speech is what is loud."""

    def reset(self) -> None:
        pass

    def probability(self, block: np.ndarray) -> float:
        return 1.0 if float(np.abs(block).max()) > 0.02 else 0.0


def tone(seconds: float, hz: float = 440.0) -> np.ndarray:
    """int16 [n] at `RATE_HZ`."""
    times = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    return (8000 * np.sin(2 * np.pi * hz * times)).astype(np.int16)


def services(
    pipeline: FakePipeline,
    engines: Sequence[FakeEntry] = (FakeEntry("eager", "Kernel per op"),),
    make_conversation: Callable[[], Any] = FakeConversation,
) -> Services:
    return Services(
        model_name="fake-model",
        engines=engines,  # type: ignore[arg-type]
        default_engine="eager",
        params=SamplingParams(),
        make_engine=FakeEngine,  # type: ignore[arg-type]
        make_conversation=make_conversation,
        make_pipeline=cast(Any, lambda: pipeline),
        make_vad=LoudnessVad,  # type: ignore[arg-type]
        make_endpointer=Endpointer,
    )
