"""One turn as the page sees it, from its place in the queue to its last word."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from audio.events import Delta, TurnDone, TurnFailed
from audio.rounds import Parts
from engine.errors import UnpausedError
from ui.gate import Ticket
from ui.playout import Playout
from ui.waits import progress_of
from ui.words import sentence

if TYPE_CHECKING:
    from audio.pipeline import VoicePipeline
    from audio.rounds import Request
    from audio.turn import Turn
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.metrics import ReplyMetrics
    from engine.reply import ReplyStream
    from ui.session import Session

logger = logging.getLogger(__name__)

Kind = Literal["text", "voice", "aside"]  # an aside is no part of the conversation
Begin = Callable[["VoicePipeline", "Conversation", "DecodeEngine"], "Turn"]

STOP_WAIT_S = 10.0  # a stopped turn ends within a token; past this something is wedged
GATE_CHECK_S = 1.0  # between two looks at the wait, each of which is told
DEFECT = "Something went wrong inside; the server's log has the details. Please try again."


class TurnWorker:
    """A turn of the conversation is `opened` by its dialogue and told of its events by `follow`;
    what runs beside the conversation has a thread of its own, which `start` begins.

    `finish` is None until the end, then one of the pipeline's words or "failed". Without a
    `ticket` one is asked for when the turn is opened.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        kind: Kind,
        speaks: bool,
        begin: Begin | None = None,
        ticket: Ticket | None = None,
        previous: TurnWorker | None = None,
        log: list[dict[str, str]] | None = None,
    ) -> None:
        self.number, self.kind, self.speaks = number, kind, speaks
        # The messages of the conversation that the turn began in:
        self.log = session.board.messages if log is None else log
        self.playout = Playout(number)
        self.running = True  # until `Session.turn_ended`
        self.finish: str | None = None
        self.error = ""
        self.question: dict[str, str] | None = None  # its entries in the session's log,
        self.reply: dict[str, str] | None = None  # where it was spoken
        self.stages: list[dict[str, Any]] = []
        self.timed_out = False  # others waited, and its time was up
        self.wait_told: dict[str, float | None] | None = None  # of its place, while it waits
        self._session, self._begin, self._ticket, self._previous = session, begin, ticket, previous
        self.source: ReplyStream | None = None  # what was decoded, once it has ended
        self._turn: Turn | None = None
        self._metrics: ReplyMetrics | None = None
        self._stopped = threading.Event()
        self._ended = threading.Event()
        if ticket is not None:
            ticket.give_way = self._give_way

    def _give_way(self) -> None:
        self.timed_out = True
        self._session.stop(self.number)

    def stop(self) -> None:
        """End the turn within a token, or its waiting at once. Safe from any thread, any time."""
        self._stopped.set()
        if self._ticket is not None:
            self._ticket.cancel()
        turn = self._turn
        if turn is not None:
            turn.stop()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def admitted(self) -> bool:
        """Whether it has had a place in the queue."""
        return self._ticket is not None

    @property
    def place(self) -> tuple[int, float | None] | None:
        """While it waits: how many turns come before it, and about how many seconds they take."""
        position = self._ticket.wait(timeout_s=0.0) if self._ticket is not None else None
        return (position, self._ticket.expected_s()) if position and self._ticket else None

    def wait_ended(self, timeout_s: float) -> bool:
        return self._ended.wait(timeout_s)

    def metrics(self) -> ReplyMetrics | None:
        """What the reply has cost so far, by the engine's clock; None before there is one."""
        turn = self._turn
        return turn.metrics() if self.finish is None and turn is not None else self._metrics

    # A turn of the conversation

    @contextmanager
    def opened(self, request: Request) -> Iterator[Parts | None]:
        """What answers `request`, once the engine is free; None when it was stopped before."""
        request.on_stop(self.stop)
        if self._ticket is None:
            if request.stopped:  # taken back before it began: it costs the visitor nothing
                yield None
                return
            self._ticket = self._session.admit(self.kind)
            self._ticket.give_way = self._give_way
        try:
            if not self._wait_at_gate():
                yield None
                return
            ticket = self._ticket
            pipeline, conversation, engine = self._session.prepare(self)
            if self.kind == "text" or ticket.waited:
                self._session.set_state(self, "thinking")
            params = self._session.params

            def begin(text: str) -> Turn:
                turn = self._turn = pipeline.text_turn(
                    text, conversation, engine, params, speak=request.speak, joins=False
                )
                ticket.how_far = lambda: progress_of(turn.reply, request.speak)
                return turn

            yield Parts(conversation, begin, engine.name)
        finally:
            self._ticket.leave()

    def voiced(self, characters: int) -> None:
        """So many more characters of the reply are speech."""
        if self._ticket is not None:
            self._ticket.voiced(characters)

    def follow(self, event: object) -> None:
        """Show one event of the turn."""
        self._follow(event)
        if isinstance(event, TurnDone | TurnFailed):
            self._end()

    def over(self, finish: str, message: str) -> None:
        """The round is over, as it may be without ever having had a turn."""
        if self.finish is None:
            self.finish = finish
            if finish == "failed":
                self._fail(message)
        self._end()

    def _end(self) -> None:
        if not self._ended.is_set():
            self.source = self._turn.reply if self._turn is not None else None
            self._turn = None
            self._session.turn_ended(self)
            self._ended.set()

    # Beside the conversation

    def start(self) -> None:
        """Run it on a thread of its own."""
        threading.Thread(target=self.run, name=f"turn-{self.number}", daemon=True).start()

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
            assert self._ticket is not None
            self._ticket.leave()
            self._end()

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
        assert self._begin is not None
        turn = self._begin(*parts)
        self._turn = turn
        if self.stopped:  # it came before there was a turn to stop
            turn.stop()
        self._session.set_state(self, "measuring")
        for event in turn:
            self._follow(event)

    def _wait_at_gate(self) -> bool:
        """True when it holds the gate, False when it was stopped before."""
        assert self._ticket is not None
        position: int | None = -1
        try:
            while not self.stopped:
                position = self._ticket.wait(position, GATE_CHECK_S)
                if not position:
                    return position == 0
                wait_s = self._ticket.expected_s()  # shown anew at every look: it counts down
                told = {"position": position, "wait_s": wait_s and round(wait_s, 1)}
                self.wait_told = told
                self._session.set_state(self, "waiting", **told)
            return False
        finally:
            self.wait_told = None

    def _follow(self, event: object) -> None:
        session = self._session
        match event:
            case Delta() if event.text:
                if self.reply is None:
                    session.set_state(self, "answering")
                session.extend_reply(self, event.text)
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
