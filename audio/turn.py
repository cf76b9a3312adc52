"""One turn under way: a thread that decodes, a thread that speaks, and who iterates it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from audio.events import (
    Clause,
    Delta,
    Event,
    Finish,
    Speech,
    Stage,
    TurnDone,
    TurnFailed,
)
from audio.mailbox import Mailbox
from audio.sentences import ClauseChunker
from audio.tts import Cancel, lower_thread_priority
from engine.errors import UnpausedError

if TYPE_CHECKING:
    from audio.tts import Synthesizer
    from engine.conversation import ReplyStream
    from engine.metrics import ReplyMetrics

logger = logging.getLogger(__name__)

DEFECT = "something went wrong inside; the log has the details"

_MAX_EVENTS = 256  # not yet taken by the iterating thread; decoding waits beyond that
_MAX_CLAUSES = 64  # not yet spoken; the same
_JOIN_S = 10.0  # a stopped decode ends within a token, a cancelled synthesis within milliseconds
_STAGES = ("prefill", "first_clause", "synthesis")


class Turn:
    """Iterate it once for its events, the last being `TurnDone` or `TurnFailed`.

    `stop` and `metrics` may be called from any thread at any time. Closing the iterator stops the
    turn; when iteration is over no thread of it is left.

    `begin` starts the reply to `text`. Without a `synthesizer` the turn is silent.
    """

    def __init__(
        self,
        begin: Callable[[str], ReplyStream],
        synthesizer: Synthesizer | None,
        text: str,
    ) -> None:
        self._begin, self._synthesizer, self._text = begin, synthesizer, text
        self._works = [self._decode] if synthesizer is None else [self._decode, self._speak]
        self._events: Mailbox[Event] = Mailbox(_MAX_EVENTS, writers=len(self._works))
        self._clauses: Mailbox[str] = Mailbox(_MAX_CLAUSES)
        self._marks: dict[str, int] = {}  # stage: when it was over, perf_counter nanoseconds
        self._threads: list[threading.Thread] = []
        self._stopped, self._cancel = threading.Event(), Cancel()
        self._reply: ReplyStream | None = None
        self._failure: str | None = None

    def stop(self) -> None:
        """End the turn: decoding within a token, synthesis within milliseconds."""
        self._stopped.set()
        self._cancel.set()
        self._events.hurry()
        self._clauses.hurry()
        reply = self._reply
        if reply is not None:
            reply.stop()

    def join(self) -> None:
        """Let the conversation go on from this turn, which was begun not to join it by itself.

        To be called at most once, when the iteration is over and before the next reply begins.
        """
        if self._reply is not None and self._failure is None:
            self._reply.join()

    @property
    def reply(self) -> ReplyStream | None:
        """The reply itself, as far as it has come; None before it began."""
        return self._reply

    def metrics(self) -> ReplyMetrics | None:
        """What the reply has cost so far; None before it began."""
        reply = self._reply
        return reply.metrics() if reply is not None else None

    def __iter__(self) -> Iterator[Event]:
        if self._threads:
            raise RuntimeError("a turn is iterated once")
        self._started_ns = time.perf_counter_ns()
        try:
            self._start()
            while (event := self._events.get()) is not None:
                stale = isinstance(event, Speech) and self._stopped.is_set()
                if not stale:
                    yield event
            self._join()
            yield self._last()
        finally:
            if any(thread.is_alive() for thread in self._threads):
                self.stop()
            self._join()

    def _start(self) -> None:
        for work in self._works:
            name = f"turn{work.__name__}"
            thread = threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _join(self) -> None:
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.error("%s did not end within %.0f s", thread.name, _JOIN_S)

    def _last(self) -> Event:
        if self._failure is not None:
            return TurnFailed(self._failure)
        reply, stopped = self._reply, self._stopped.is_set()
        if reply is None:
            return TurnDone("", None, [], "stopped")
        finish: Finish = "stopped" if stopped else "complete"
        return TurnDone(reply.text, reply.metrics(), self._stages(), finish)

    def _stages(self) -> list[Stage]:
        stages, before = [], self._started_ns
        for name in _STAGES:
            if name in self._marks:
                stages.append(Stage(name, (self._marks[name] - before) / 1e6))
                before = self._marks[name]
        return stages

    def _mark(self, stage: str) -> None:
        self._marks.setdefault(stage, time.perf_counter_ns())

    # What the threads do

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except UnpausedError as error:
            self._fail(str(error))
        except Exception:
            logger.exception("a turn failed")
            self._fail(DEFECT)
        finally:
            self._events.finish()

    def _fail(self, message: str) -> None:
        self._failure = self._failure or message
        self.stop()

    def _decode(self) -> None:
        try:
            if not self._stopped.is_set():
                self._answer(self._text)
        finally:
            self._clauses.finish()

    def _answer(self, text: str) -> None:
        chunker = ClauseChunker() if self._synthesizer is not None else None
        reply = self._begin(text)
        self._reply = reply
        if self._stopped.is_set():  # it came before there was a reply to stop
            reply.stop()
        for delta in reply:
            self._mark("prefill")
            said = "" if delta.thinking else delta.text
            self._events.put(Delta(said, delta.token))
            if chunker is not None:
                self._hand_over(chunker.push(said))
        if chunker is not None:
            self._hand_over(chunker.flush())

    def _hand_over(self, clauses: list[str]) -> None:
        for clause in clauses:
            self._mark("first_clause")
            self._events.put(Clause(clause))
            self._clauses.put(clause)

    def _speak(self) -> None:
        assert self._synthesizer is not None
        while (clause := self._clauses.get()) is not None and not self._stopped.is_set():
            pcm = self._synthesizer.synthesize(clause, self._cancel)
            if len(pcm):
                self._mark("synthesis")
                self._events.put(Speech(pcm, self._synthesizer.rate_hz, clause))
                # The first clause is waited for. The others have the time until it is spoken, and
                # must not slow down the decoding that they share the processor with.
                lower_thread_priority()
