"""One visitor: the conversation, the engine chosen, the turn under way and what the page shows.

Typed and spoken turns take the same road. Both end up on the `board`, which the page follows
through `wait`, and in the `ledger`, which can be exported: `Minutes` writes them down, `Channel` is
the socket's side.
"""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import UnpausedError
from engine.reply import check_hidden_tokens
from ui import reports
from ui.floor import Floor
from ui.lab import Lab
from ui.minutes import Minutes
from ui.runs import Contender, Runs
from ui.services import Runtime
from ui.turn_worker import Begin, Kind, TurnWorker

if TYPE_CHECKING:
    from audio.dialogue import Dialogue
    from audio.pipeline import VoicePipeline
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.sampling import SamplingParams
    from ui.gate import Ticket

MAX_TEXT_CHARS = 8000  # the context refuses earlier; this bounds the work of finding out


class Session(Minutes):
    """Every method is safe from any thread; none blocks for longer than it says."""

    def __init__(self, runtime: Runtime, session_id: str) -> None:
        super().__init__(runtime)
        self.id = session_id
        self.engine_name = runtime.services.default_engine
        self.hidden_tokens = 0  # decoded before the next reply, and not said
        self.used_at = time.monotonic()
        self.lab = Lab(self)
        self._outbox.count_dropped = runtime.telemetry.dropped
        self._numbers = count(1)  # of turns
        self._floor = Floor(self, runtime, self._numbers)
        self._conversation: Conversation | None = None
        self._fresh = False  # the conversation is to be cleared before the next turn

    # What the visitor does

    def start_text(self, text: str) -> int:
        """Answer typed `text`; returns the turn's number. Raises `UnpausedError`: nothing began."""
        text = text.strip()
        if not text:
            raise UnpausedError("Write something first.")
        if len(text) > MAX_TEXT_CHARS:
            raise UnpausedError(
                f"That is {len(text):,} characters; please stay under {MAX_TEXT_CHARS:,}."
            )
        return self._start("text", self.speaks, None, typed=text).number

    def start_voice(self, samples: np.ndarray, endpointing_ms: float) -> int:
        """Answer speech: float32 [n] at 16 kHz, which ended `endpointing_ms` ago."""
        return self._floor.answer(samples, endpointing_ms)

    def stop(self, turn: int | None = None, samples: int = 0) -> None:
        """Stop the turn under way and its speech, of which `samples` were played.

        A `turn` other than the latest is stale and ignored.
        """
        with self.changed:
            worker = self._worker
            if worker is None or turn not in (None, worker.number):
                return
        if worker.kind == "aside":
            worker.stop()
        else:
            self._floor.dialogue.stop(samples)

    def forget(self) -> None:
        """The visitor has left for good: end the turn, and let go of the words and the KV cache.

        What a session is made of refers to each other, and would else wait for a collection of
        garbage. A reply that is only just being stopped keeps its cache until then.
        """
        self.stop()
        with self.changed:
            conversation, self._conversation, self.last_reply = self._conversation, None, None
            idle = self._worker is None or not self._worker.running
        if conversation is not None and idle:
            conversation.clear()
            self._runtime.kv.release(conversation)

    def new_conversation(self) -> None:
        self.stop()
        with self.changed:
            self._fresh = True
            self._failed_text = ""
            self._outbox.put({"type": "cleared"})
            self.board.clear()

    @property
    def active(self) -> bool:
        """A turn is under way, or its speech is still being played."""
        return super().active or self._floor.dialogue.active

    @property
    def dialogue(self) -> Dialogue:
        """Who has the floor: it is fed by the microphone and the player."""
        return self._floor.dialogue

    def silence(self) -> None:
        """No more sound of the turn under way, and none of those to come unless `speaks`."""
        self._floor.dialogue.speak = self.speaks
        if not self.speaks:
            self._floor.dialogue.mute()

    def set_engine(self, name: str) -> None:
        """Choose the engine of the next turn. Raises `UnpausedError`."""
        self._runtime.check_engine(name)
        self.engine_name = name

    def set_hidden_tokens(self, count: int) -> None:
        """So many tokens are decoded before the next reply and not said. Raises `UnpausedError`."""
        check_hidden_tokens(count)
        self.hidden_tokens = count

    def start_aside(self, runs: Runs) -> TurnWorker:
        """Begin `runs`, which are no part of the conversation. Raises `UnpausedError`."""

        def begin(_: VoicePipeline, conversation: Conversation, __: DecodeEngine) -> Any:
            conversation.hidden_tokens = 0
            runs.conversation = conversation
            return runs

        return self._start("aside", False, begin)

    # What the page and the socket read

    @property
    def params(self) -> SamplingParams:
        return self._runtime.services.params

    @property
    def thinks(self) -> bool | None:
        """Whether the model has thinking of its own; None before it was loaded."""
        return self._conversation.thinks if self._conversation is not None else None

    def contender(self, name: str) -> Contender:
        """The engine called `name`, for `Runs`. Raises `UnpausedError` unless it runs here."""
        self._runtime.check_engine(name)
        return self._runtime.label(name), lambda: self._runtime.engine(name)

    def wait_idle(self, timeout_s: float) -> bool:
        """Whether the turn under way, if any, ended within `timeout_s`."""
        worker = self._worker
        return worker is None or worker.wait_ended(timeout_s)

    def metrics(self, since: tuple[int, int] = (0, 0)) -> dict[str, Any] | None:
        """Of the latest turn: {"turn", "running", "latencies", **ReplyMetrics.as_dict()}.

        "latencies" are {"from", "ms"}: each token's own, from the first that was not yet told.
        `since` is (turn, tokens) of the message before.
        """
        worker = self._worker
        figures = worker.metrics() if worker else None
        if worker is None or figures is None:
            return None
        told = since[1] if since[0] == worker.number else 0
        label, ceiling = self._runtime.label(figures.engine), self._runtime.bandwidth
        running = worker.finish is None
        return reports.figures(worker.number, running, figures, told, label, ceiling)

    # What the turn's worker reports

    def prepare(self, worker: TurnWorker) -> tuple[VoicePipeline, Conversation, DecodeEngine]:
        """The parts the turn needs. Seconds when they are still being loaded."""
        if not self._runtime.ready:
            self.set_state(worker, "loading")
        engine = self._runtime.engine(self.engine_name)
        if self._conversation is None:
            self._conversation = self._runtime.services.make_conversation()
        elif self._fresh:
            self._conversation.clear()
        self._fresh = False
        self._runtime.kv.use(self._conversation)
        self._conversation.hidden_tokens = self.hidden_tokens
        return self._runtime.pipeline(), self._conversation, engine

    def admit(self, kind: Kind) -> Ticket:
        """A place in the queue. Raises `QueueFull`."""
        return self._runtime.admit(self.id, kind)

    def begin_round(self, worker: TurnWorker) -> None:
        """A spoken turn has begun."""
        with self.changed:
            if self._worker is not None and self._worker.kind == "aside":
                self._worker.stop()
            self._adopt(worker)
        self.set_state(worker, "transcribing")

    # Inside; the lock is held

    def _start(self, kind: Kind, speak: bool, begin: Begin | None, typed: str = "") -> TurnWorker:
        ticket = self.admit(kind)
        with self.changed:
            self.stop()
            log = [] if kind == "aside" else self.board.messages
            number = next(self._numbers)
            worker = TurnWorker(self, number, kind, speak, begin, ticket, self._worker, log)
            self._adopt(worker, typed)
            if kind == "aside":
                worker.start()
            else:
                self.board.add(self.board.messages, "user", typed)
                self._floor.say(typed, worker)
            return worker

    def _adopt(self, worker: TurnWorker, typed: str = "") -> None:
        """`worker`'s is the latest turn."""
        self.used_at = time.monotonic()
        self._number, self._worker = worker.number, worker
        self._typed, self._failed_text, self._spoken = typed, "", []
        self._outbox.put({"type": "turn", "turn": worker.number, "kind": worker.kind})
