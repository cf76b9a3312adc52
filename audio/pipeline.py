"""One turn: speech to text to reply to speech, each stage handing on what is ready.

    transcriber -> conversation.reply -> ClauseChunker -> synthesizer -> events

Decoding and synthesis have a thread each, so that the voice starts while the reply still grows;
whoever iterates the turn merges what they produce.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from audio.sentences import ClauseChunker
from audio.tts import Cancel, lower_thread_priority
from engine.errors import UnpausedError

if TYPE_CHECKING:
    from audio.stt import Transcriber
    from audio.tts import Synthesizer
    from engine.base import DecodeEngine, Token
    from engine.conversation import Conversation, ReplyStream
    from engine.metrics import ReplyMetrics
    from engine.sampling import SamplingParams

logger = logging.getLogger(__name__)

Finish = Literal["complete", "stopped", "no_speech"]
DEFECT = "something went wrong inside; the log has the details"

_MAX_EVENTS = 256  # not yet taken by the iterating thread; decoding waits beyond that
_MAX_CLAUSES = 64  # not yet spoken
_PATIENCE_S = 0.05  # between two looks at whether the turn was stopped
_JOIN_S = 10.0  # a stopped decode ends within a token, a cancelled synthesis within milliseconds
_STAGES = ("transcription", "prefill", "first_clause", "synthesis")


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of the way from the end of speech to the first sound of the answer."""

    name: str
    ms: float


@dataclass(frozen=True, slots=True)
class Transcribed:
    """What was heard; "" when there was no speech after all."""

    text: str
    ms: float


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the reply's text, "" while nothing new is certain, and the token it came with."""

    text: str
    token: Token | None


@dataclass(frozen=True, eq=False, slots=True)
class Speech:
    """The voice for `text`, one clause or sentence. `pcm`: int16 [n], mono, at `rate_hz`."""

    pcm: np.ndarray
    rate_hz: int
    text: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The end of a turn. `stages` follow each other without a gap; when there was a voice they sum
    to the time from the end of speech to its first sample. `metrics` are the engine's."""

    reply: str
    metrics: ReplyMetrics | None
    stages: list[Stage]
    finish: Finish


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The end of a turn that could not be answered, in words for the person."""

    message: str


Event: TypeAlias = Transcribed | Delta | Speech | TurnDone | TurnFailed
Begin: TypeAlias = "Callable[[str], ReplyStream]"


class VoicePipeline:
    """A transcriber and a synthesizer, shared by all turns; conversation and engine come with each.

    Nothing starts before the returned turn is iterated.
    """

    def __init__(self, transcriber: Transcriber, synthesizer: Synthesizer) -> None:
        self._transcriber, self._synthesizer = transcriber, synthesizer

    def warm(self) -> None:
        """Run both models once: first runs take longer, and the first turn should not."""
        self._transcriber.warm()
        self._synthesizer.warm()

    def text_turn(
        self,
        text: str,
        conversation: Conversation,
        engine: DecodeEngine,
        params: SamplingParams,
        speak: bool = True,
    ) -> Turn:
        """Answer typed `text`, aloud if `speak`."""
        synthesizer = self._synthesizer if speak else None
        return Turn(lambda heard: conversation.reply(engine, heard, params), synthesizer, text=text)

    def voice_turn(
        self,
        samples: np.ndarray,
        conversation: Conversation,
        engine: DecodeEngine,
        params: SamplingParams,
        endpointing_ms: float,
        speak: bool = True,
    ) -> Turn:
        """Answer speech: float32 [n] at 16 kHz, which ended `endpointing_ms` before now."""
        return Turn(
            lambda heard: conversation.reply(engine, heard, params),
            self._synthesizer if speak else None,
            listen=lambda: self._transcriber.transcribe(samples).text,
            endpointing_ms=endpointing_ms,
        )


class Turn:
    """Iterate it once for its events, the last being `TurnDone` or `TurnFailed`.

    `stop` and `metrics` may be called from any thread at any time. Closing the iterator stops the
    turn; when iteration is over no thread of it is left.
    """

    def __init__(
        self,
        begin: Begin,
        synthesizer: Synthesizer | None,
        text: str = "",
        listen: Callable[[], str] | None = None,
        endpointing_ms: float | None = None,
    ) -> None:
        self._begin, self._synthesizer, self._text = begin, synthesizer, text
        self._listen, self._endpointing_ms = listen, endpointing_ms
        self._events: queue.Queue[Event | None] = queue.Queue(_MAX_EVENTS)  # None: a thread ended
        self._clauses: queue.Queue[str | None] = queue.Queue(_MAX_CLAUSES)  # None: no more
        self._marks: dict[str, int] = {}  # stage: when it was over, perf_counter nanoseconds
        self._stopped, self._cancel = threading.Event(), Cancel()
        self._reply: ReplyStream | None = None
        self._failure: str | None = None

    def stop(self) -> None:
        """End the turn: decoding within a token, synthesis within milliseconds."""
        self._stopped.set()
        self._cancel.set()
        reply = self._reply
        if reply is not None:
            reply.stop()

    def metrics(self) -> ReplyMetrics | None:
        """What the reply has cost so far; None before it began."""
        reply = self._reply
        return reply.metrics() if reply is not None else None

    def __iter__(self) -> Iterator[Event]:
        works = [self._decode] if self._synthesizer is None else [self._decode, self._speak]
        threads = [
            threading.Thread(target=self._guard, args=(work,), name=work.__name__, daemon=True)
            for work in works
        ]
        self._started_ns = time.perf_counter_ns()
        for thread in threads:
            thread.start()
        try:
            running = len(threads)
            while running:
                event = self._events.get()
                if event is None:
                    running -= 1
                else:
                    yield event
            yield self._last()
        finally:
            self._wind_up(threads)

    def _last(self) -> Event:
        if self._failure is not None:
            return TurnFailed(self._failure)
        stopped = self._stopped.is_set()
        if self._reply is None and not stopped:
            return TurnDone("", None, self._stages(), "no_speech")
        text = self._reply.text if self._reply else ""
        return TurnDone(text, self.metrics(), self._stages(), "stopped" if stopped else "complete")

    def _stages(self) -> list[Stage]:
        stages, before = [], self._started_ns
        if self._endpointing_ms is not None:
            stages.append(Stage("endpointing", self._endpointing_ms))
        for name in _STAGES:
            if name in self._marks:
                stages.append(Stage(name, (self._marks[name] - before) / 1e6))
                before = self._marks[name]
        return stages

    def _mark(self, stage: str) -> None:
        self._marks.setdefault(stage, time.perf_counter_ns())

    def _wind_up(self, threads: list[threading.Thread]) -> None:
        """Wait for the threads, which may be waiting for room in the queue; then no more is due."""
        if any(thread.is_alive() for thread in threads):
            self.stop()
        deadline = time.monotonic() + _JOIN_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.error("%s did not end within %.0f s", thread.name, _JOIN_S)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except UnpausedError as error:
            self._fail(str(error))
        except Exception:
            logger.exception("a turn failed")
            self._fail(DEFECT)
        finally:
            self._put(self._events, None, even_if_stopped=True)

    def _fail(self, message: str) -> None:
        self._failure = self._failure or message
        self.stop()

    def _decode(self) -> None:
        chunker = ClauseChunker() if self._synthesizer is not None else None
        try:
            text = self._heard()
            if text and not self._stopped.is_set():
                self._answer(text, chunker)
        finally:
            if chunker is not None:
                self._put(self._clauses, None)

    def _heard(self) -> str:
        if self._listen is None:
            return self._text
        text = self._listen().strip()
        self._mark("transcription")
        started_ns = self._started_ns
        self._send(Transcribed(text, (self._marks["transcription"] - started_ns) / 1e6))
        return text

    def _answer(self, text: str, chunker: ClauseChunker | None) -> None:
        reply = self._begin(text)
        self._reply = reply
        if self._stopped.is_set():  # it came before there was a reply to stop
            reply.stop()
        for delta in reply:
            self._mark("prefill")
            said = "" if delta.thinking else delta.text
            self._send(Delta(said, delta.token))
            if chunker is not None:
                self._hand_over(chunker.push(said))
        if chunker is not None:
            self._hand_over(chunker.flush())

    def _hand_over(self, clauses: list[str]) -> None:
        for clause in clauses:
            self._mark("first_clause")
            self._put(self._clauses, clause)

    def _speak(self) -> None:
        assert self._synthesizer is not None
        lower_thread_priority()
        while (clause := self._next_clause()) is not None:
            pcm = self._synthesizer.synthesize(clause, self._cancel)
            if len(pcm):
                self._mark("synthesis")
                self._send(Speech(pcm, self._synthesizer.rate_hz, clause))

    def _next_clause(self) -> str | None:
        while not self._stopped.is_set():
            try:
                return self._clauses.get(timeout=_PATIENCE_S)
            except queue.Empty:
                continue
        return None

    def _send(self, event: Event) -> None:
        self._put(self._events, event)

    def _put(self, target: queue.Queue, item: object, even_if_stopped: bool = False) -> None:
        """Wait for room as long as the turn goes on; afterwards only the end is still worth telling,
        and it is told by making room."""
        while not self._stopped.is_set():
            try:
                target.put(item, timeout=_PATIENCE_S)
                return
            except queue.Full:
                continue
        while even_if_stopped:
            try:
                target.put_nowait(item)
                return
            except queue.Full:
                _drop_one(target)


def _drop_one(target: queue.Queue) -> None:
    try:
        target.get_nowait()
    except queue.Empty:
        return
