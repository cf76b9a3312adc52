"""Stand-ins for the models behind the page: real interfaces, instant answers, a tone for a voice.

They keep the contracts of `audio.pipeline` and `engine.conversation`, so that what is tested with
them is the page, the socket and the session, and nothing is waited for that is not theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch

from audio.events import Clause, Delta, Finish, Speech, TurnDone, TurnFailed
from engine.base import Token
from engine.generate import TextDelta
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


class FakeReply:
    """As `engine.reply.ReplyStream`: one token a word, at its engine's pace."""

    def __init__(
        self, conversation: FakeConversation, engine: Any, request: FakeRequest, joins: bool = True
    ) -> None:
        self.request, self.user_text, self.joins = request, request.user_text, joins
        self.deltas: list[TextDelta] = []
        self.text = ""
        self._conversation, self._stopped = conversation, threading.Event()
        self._metrics = ReplyMetrics(engine=engine.name, model="fake", prompt_tokens=9)
        self._pace_ns = PACE_NS.get(engine.name, 18_400_000)

    def stop(self) -> None:
        self._stopped.set()

    def metrics(self) -> ReplyMetrics:
        return replace(self._metrics, token_times_ns=list(self._metrics.token_times_ns))

    def add(self, text: str, hidden: bool = False) -> None:
        """One token more."""
        count = len(self.deltas) + 1
        token = Token(1000 + len(text), self._metrics.start_ns + count * self._pace_ns, -1.0)
        self.deltas.append(TextDelta(text, token, hidden))
        self._metrics.token_times_ns.append(token.time_ns)
        self.text += text
        self._metrics.hidden_tokens += hidden

    def __iter__(self) -> Iterator[TextDelta]:
        for count, word in enumerate(self.request.answer.split(" ")):
            if self._stopped.is_set():
                break
            self.add(word if count == 0 else f" {word}")
            yield self.deltas[-1]
        self._metrics.finish_reason = "stopped" if self._stopped.is_set() else "eos"


PACE_NS = {"cpu": 4_000_000}  # by engine


@dataclass
class FakeRequest:
    user_text: str
    answer: str
    params: SamplingParams = field(default_factory=SamplingParams)


class FakeConversation:
    thinks = False

    def __init__(self) -> None:
        self.messages: list[dict[str, str]] = []
        self.hidden_tokens = 0
        self.last: FakeReply | None = None
        self.cache = KVCache(1, 1, 8, 2, torch.float32)

    def reply(self, engine: Any, text: str, params: Any, joins: bool = True) -> FakeReply:
        return FakeReply(self, engine, FakeRequest(text, REPLY, params), joins)

    def again(self, engine: Any, reply: FakeReply) -> FakeReply:
        return FakeReply(self, engine, reply.request, joins=False)

    def keep_heard(self, text: str) -> None:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages[-1]["content"] = text

    def retract(self) -> None:
        del self.messages[-2:]

    def clear(self) -> None:
        self.messages.clear()
        self.last = None


class FakeTurn:
    """Speaks `words` one per token. `gate`, when given, is waited for before every word."""

    def __init__(
        self,
        conversation: FakeConversation,
        engine: Any,
        text: str,
        pipeline: FakePipeline,
        speak: bool,
    ) -> None:
        self._conversation, self._text, self._pipeline = conversation, text, pipeline
        self._speak, self._said = speak, ""
        self._stopped = threading.Event()
        self._engine = engine
        self.reply: FakeReply | None = None

    def stop(self) -> None:
        self._stopped.set()

    def metrics(self) -> ReplyMetrics | None:
        reply = self.reply
        return reply.metrics() if reply is not None and reply.deltas else None

    def __iter__(self) -> Iterator[Any]:
        pipeline = self._pipeline
        if pipeline.fails:
            yield TurnFailed(pipeline.fails)
            return
        request = FakeRequest(self._text, pipeline.reply)
        reply = self.reply = FakeReply(self._conversation, self._engine, request)
        figures = reply._metrics
        figures.trimmed_turns = pipeline.trimmed_turns
        for _ in range(self._conversation.hidden_tokens):
            pipeline.wait(self._stopped)
            reply.add("", hidden=True)
            yield Delta("", reply.deltas[-1].token)
        said = ""
        for count, word in enumerate(pipeline.reply.split(" ")):
            pipeline.wait(self._stopped)
            if self._stopped.is_set():
                break
            if count + 1 == pipeline.hold_after:
                pipeline.pace.clear()  # before the word is out: whoever sees it may set it again
            piece = word if not said else " " + word
            said += piece
            reply.add(piece)
            yield Delta(piece, reply.deltas[-1].token)
            if word.endswith((".", "!", "?")) and self._speak:
                clause = said.split(". ")[-1]
                yield Clause(clause)
                yield Speech(tone(0.25 * len(clause.split())), RATE_HZ, clause)
        self._said = said
        finish: Finish = "stopped" if self._stopped.is_set() else "complete"
        figures.finish_reason = "stopped" if self._stopped.is_set() else pipeline.finish_reason
        yield TurnDone(said, figures, [], finish)

    def join(self) -> None:
        self._conversation.messages += [
            {"role": "user", "content": self._text},
            {"role": "assistant", "content": self._said},
        ]
        self._conversation.last = self.reply


@dataclass
class FakePipeline:
    """`pace` cleared holds every turn before its next word, until it is set or the turn stops.

    `hold_after` so many words a turn clears it by itself.
    """

    reply: str = REPLY
    transcript: str = "Why is the sky blue?"
    fails: str = ""
    trimmed_turns: int = 0
    finish_reason: str = "eos"
    word_s: float = 0.0
    hold_after: int | None = None
    pace: threading.Event = field(default_factory=threading.Event)
    turns: list[FakeTurn] = field(default_factory=list)
    heard: list[np.ndarray] = field(default_factory=list)

    def tidy(self) -> None:
        """It needs no memory."""

    def __post_init__(self) -> None:
        self.pace.set()

    def warm(self) -> None:
        pass

    def wait(self, stopped: threading.Event) -> None:
        if self.word_s:
            stopped.wait(self.word_s)
        while not (stopped.is_set() or self.pace.wait(0.02)):
            pass

    def transcribe(self, samples: np.ndarray) -> str:
        self.heard.append(samples)
        return self.transcript

    def text_turn(
        self,
        text: str,
        conversation: Any,
        engine: Any,
        params: SamplingParams,
        speak: bool = True,
        joins: bool = True,
    ) -> FakeTurn:
        turn = FakeTurn(conversation, engine, text, self, speak)
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
    )
