"""One turn, from its place in the queue to its last word, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from audio.pipeline import Delta, Speech, Transcribed, TurnDone, TurnFailed
from engine.errors import UnpausedError
from ui.gate import Ticket
from ui.playout import Playout
from ui.words import sentence

if TYPE_CHECKING:
    from audio.pipeline import Turn, VoicePipeline
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.metrics import ReplyMetrics
    from ui.session import Session

logger = logging.getLogger(__name__)

Kind = Literal["text", "voice", "aside"]  # an aside is no part of the conversation
Begin = Callable[["VoicePipeline", "Conversation", "DecodeEngine"], "Turn"]

STOP_WAIT_S = 10.0  # a stopped turn ends within a token; past this something is wedged
GATE_CHECK_S = 2.0
DEFECT = "Something went wrong inside; the server's log has the details. Please try again."


class TurnWorker(threading.Thread):
    """Waits for the turn before it and for the engine, then follows the pipeline's events.

    `finish` is None until the end, then one of the pipeline's words or "failed".
    """

    def __init__(
        self,
        session: Session,
        number: int,
        kind: Kind,
        speaks: bool,
        begin: Begin,
        ticket: Ticket,
        previous: TurnWorker | None,
        log: list[dict[str, str]],
    ) -> None:
        super().__init__(name=f"turn-{number}", daemon=True)
        self.number, self.kind, self.speaks = number, kind, speaks
        self.log = log  # the messages of the conversation that the turn began in
        self.playout = Playout(number)
        self.running = True  # until `Session.turn_ended`
        self.finish: str | None = None
        self.error = ""
        self.reply: dict[str, str] | None = None  # its entry in the session's log
        self.stages: list[dict[str, Any]] = []
        self._session, self._begin, self._ticket, self._previous = session, begin, ticket, previous
        self._turn: Turn | None = None
        self._metrics: ReplyMetrics | None = None
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self.timed_out = False  # others waited, and its time was up
        ticket.give_way = self._give_way

    def _give_way(self) -> None:
        self.timed_out = True
        self.stop()

    def stop(self) -> None:
        """End the turn within a token, or its waiting at once. Safe from any thread, any time."""
        self._stopped.set()
        self._ticket.cancel()
        turn = self._turn
        if turn is not None:
            turn.stop()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def wait_ended(self, timeout_s: float) -> bool:
        return self._ended.wait(timeout_s)

    def metrics(self) -> ReplyMetrics | None:
        """What the reply has cost so far, by the engine's clock; None before there is one."""
        turn = self._turn
        return turn.metrics() if self.finish is None and turn is not None else self._metrics

    def run(self) -> None:
        try:
            self._run()
        except UnpausedError as error:
            self._fail(str(error))
        except Exception:
            logger.exception("turn %d failed", self.number)
            self._fail(DEFECT)
        finally:
            self._previous = None  # a chain of turns must not keep each other alive
            self._turn = None
            self._ticket.leave()
            self._session.turn_ended(self)
            self._ended.set()

    def _run(self) -> None:
        if self._previous and not self._previous.wait_ended(STOP_WAIT_S):
            raise UnpausedError("The turn before this one did not stop. Please try again.")
        if not self._wait_at_gate():
            self.finish = "stopped"
            return
        parts = self._session.prepare(self)
        if self.stopped:
            self.finish = "stopped"
            return
        turn = self._begin(*parts)
        self._turn = turn
        if self.stopped:  # it came before there was a turn to stop
            turn.stop()
        self._session.set_state(self, "transcribing" if self.kind == "voice" else "thinking")
        for event in turn:
            self._follow(event)

    def _wait_at_gate(self) -> bool:
        """True when it holds the gate, False when it was stopped before."""
        position: int | None = -1
        while not self.stopped:
            position = self._ticket.wait(position, GATE_CHECK_S)
            if position is None:
                return False
            if position == 0:
                return True
            wait_s = self._ticket.expected_s()  # shown anew at every look: it counts down
            self._session.set_state(
                self, "waiting", position=position, wait_s=wait_s and round(wait_s, 1)
            )
        return False

    def _follow(self, event: object) -> None:
        session = self._session
        match event:
            case Transcribed():
                session.heard(self, event.text)
                session.set_state(self, "thinking")
            case Delta() if event.text:
                if self.reply is None:
                    session.set_state(self, "answering")
                session.extend_reply(self, event.text)
            case Speech():
                session.add_speech(self, event.pcm, event.rate_hz, event.text)
            case TurnDone():
                self.stages = [{"name": stage.name, "ms": stage.ms} for stage in event.stages]
                self._metrics = event.metrics
                if event.metrics is not None:
                    session.count(event.metrics)
                self.finish = event.finish
            case TurnFailed():
                self._fail(event.message)

    def _fail(self, message: str) -> None:
        turn = self._turn
        self._metrics = turn.metrics() if turn else None
        self.error, self.finish = sentence(message), "failed"
