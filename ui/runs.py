"""One prompt on several engines, one after the other: a turn that is no part of a conversation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from audio.events import TurnDone
from ui.trace import Trace

if TYPE_CHECKING:
    from audio.events import Event
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.metrics import ReplyMetrics
    from engine.reply import ReplyStream

TASTE_TOKENS = 3  # decoded before a timed run: whatever an engine does once, it has then done

Contender = tuple[str, Callable[[], "DecodeEngine"]]  # label, engine (made when first asked for)
Subject = Callable[["Conversation", "DecodeEngine"], "ReplyStream"]


class Runs:
    """Iterate it as a turn. Every run starts from the same cache, prompt and seed.

    `subject` gives the reply that is repeated, on the first contender's engine. `traces` are in
    the order of `contenders`, each None until its run is complete; they run in `order`. With
    `secret` nothing is told of how fast they are.
    """

    def __init__(
        self,
        subject: Subject,
        contenders: Sequence[Contender],
        order: Sequence[int],
        secret: bool = False,
    ) -> None:
        self.contenders, self.order = contenders, list(order)
        self.traces: list[Trace | None] = [None] * len(contenders)
        self.step = 0  # how many of the runs have begun
        self.conversation: Conversation | None = None
        self._subject, self._secret = subject, secret
        self._stopped = threading.Event()
        self._current: ReplyStream | None = None
        self.reply = None  # none of it is part of the conversation

    def stop(self) -> None:
        """End the run under way within a token, and begin no other. Safe from any thread."""
        self._stopped.set()
        current = self._current
        if current is not None:
            current.stop()

    def metrics(self) -> ReplyMetrics | None:
        """Of the run under way, unless it is secret."""
        current = self._current
        return None if self._secret or current is None else current.metrics()

    def __iter__(self) -> Iterator[Event]:
        assert self.conversation is not None, "given by whoever begins the turn"
        engines = [make() for _, make in self.contenders]
        subject = self._subject(self.conversation, engines[0])
        if subject.metrics().finish_reason is None:  # asked for this very purpose
            self._taste(subject)
        for index in self.order:
            if self._stopped.is_set():
                break
            self.step += 1
            engine = engines[index]
            self._taste(self.conversation.again(engine, subject))
            reply = self._watched(self.conversation.again(engine, subject))
            for _ in reply:
                pass
            if not self._stopped.is_set():
                self.traces[index] = Trace.of(reply, self.contenders[index][0])
        yield TurnDone("", self.metrics(), [], "stopped" if self._stopped.is_set() else "complete")

    def _watched(self, reply: ReplyStream) -> ReplyStream:
        self._current = reply
        if self._stopped.is_set():  # it came before there was a reply to stop
            reply.stop()
        return reply

    def _taste(self, reply: ReplyStream) -> None:
        for count, _ in enumerate(tokens := iter(self._watched(reply)), start=1):
            if count == TASTE_TOKENS or self._stopped.is_set():
                break
        tokens.close()  # type: ignore[attr-defined]
