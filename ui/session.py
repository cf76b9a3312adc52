"""One visitor: the conversation, the engine chosen, the turn under way and what the page shows.

Typed and spoken turns take the same road. Both end up in `messages`, which the page follows
through `wait`; the voice socket drains `outgoing`: events, and speech paced by its playback.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import UnpausedError
from ui.outbox import Outbox, Outgoing
from ui.services import Runtime
from ui.turn_worker import Begin, Kind, TurnWorker
from ui.words import left_out

if TYPE_CHECKING:
    from audio.pipeline import VoicePipeline
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.metrics import ReplyMetrics

MAX_TEXT_CHARS = 8000  # the context refuses earlier; this bounds the work of finding out
MAX_SHOWN = 400  # messages kept on the page
TIME_IS_UP = "*Stopped: others are waiting for the engine.*"


@dataclass(frozen=True)
class View:
    """What the page shows at `version`, and how the latest turn is doing.

    `messages` are {"role", "content"}. `failed_text` is what was typed when the last turn failed
    before it answered anything.
    """

    version: int
    messages: list[dict[str, str]]
    turn: int
    running: bool
    failed_text: str


class Session:
    """Every method is safe from any thread; none blocks for longer than it says."""

    def __init__(self, runtime: Runtime, session_id: str) -> None:
        self.id = session_id
        self.engine_name = runtime.services.default_engine
        self.used_at = time.monotonic()
        self._runtime = runtime
        self._changed = threading.Condition()  # guards all below
        self._version = 0
        self._messages: list[dict[str, str]] = []
        self._number = 0
        self._worker: TurnWorker | None = None
        self._typed = ""
        self._failed_text = ""
        self._conversation: Conversation | None = None
        self._fresh = False  # the conversation is to be cleared before the next turn
        self._sound = False
        self._outbox = Outbox()

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
        speak = self.speaks
        params = self._runtime.services.params
        return self._start(
            "text", speak, lambda p, c, e: p.text_turn(text, c, e, params, speak=speak), typed=text
        )

    def start_voice(self, samples: np.ndarray, endpointing_ms: float) -> int:
        """Answer speech: float32 [n] at 16 kHz, which ended `endpointing_ms` ago."""
        speak = self.speaks
        params = self._runtime.services.params
        return self._start(
            "voice",
            speak,
            lambda p, c, e: p.voice_turn(samples, c, e, params, endpointing_ms, speak=speak),
        )

    def stop(self, turn: int | None = None, samples: int = 0) -> None:
        """Stop the turn under way and its speech, of which `samples` were played.

        A `turn` other than the latest is stale and ignored.
        """
        with self._changed:
            worker = self._worker
            if worker is None or turn not in (None, worker.number):
                return
            if not worker.running and not worker.playout.playing:
                return
            worker.playout.report(samples)
            worker.playout.drop()
            self._outbox.put({"type": "flush", "turn": worker.number})
            if not worker.running:
                self._keep_heard(worker)
        worker.stop()

    def new_conversation(self) -> None:
        self.stop()
        with self._changed:
            self._messages = []
            self._fresh = True
            self._failed_text = ""
            self._outbox.put({"type": "cleared"})
            self._bump()

    def set_engine(self, name: str) -> None:
        """Choose the engine of the next turn. Raises `UnpausedError`."""
        self._runtime.check_engine(name)
        self.engine_name = name

    def set_sound(self, on: bool) -> None:
        """Whether the client wants speech, and can play it. Off silences a turn under way."""
        with self._changed:
            self._sound = on
            if not on and self._worker is not None:
                self._worker.playout.drop()
                self._outbox.put({"type": "flush", "turn": self._worker.number})

    def played(self, turn: int, samples: int, done: bool) -> None:
        """The client's report on the speech of `turn`."""
        with self._changed:
            worker = self._worker
            if worker is None or worker.number != turn:
                return
            worker.playout.report(worker.playout.sent if done else samples)
            self._outbox.progressed()

    # What the page and the socket read

    @property
    def speaks(self) -> bool:
        return self._sound and self._outbox.wake is not None

    @property
    def active(self) -> bool:
        """A turn is under way, or its speech is still being played."""
        worker = self._worker
        return worker is not None and (worker.running or worker.playout.playing)

    def view(self) -> View:
        with self._changed:
            return self._view()

    def wait(self, version: int, timeout_s: float) -> View:
        """The view as soon as it is newer than `version`, or after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout_s)
            return self._view()

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
        return {
            "turn": worker.number,
            "running": worker.finish is None,
            "latencies": {"from": told, "ms": figures.latencies_ms()[told:].round(3).tolist()},
            **figures.as_dict(),
        }

    def attach(self, wake: Callable[[], None]) -> None:
        """A socket took the session over: `wake` is called, briefly, when there is outgoing."""
        with self._changed:
            self._outbox.join(wake)
            self._outbox.put({"type": "ready", "turn": self._number})

    def detach(self, wake: Callable[[], None]) -> None:
        """The socket closed: nobody listens any more, so the turn under way ends."""
        with self._changed:
            if self._outbox.wake != wake:  # another socket has taken over
                return
            self._outbox.wake = None
            self._sound = False
        self.stop()

    def tell(self, event: dict[str, Any]) -> None:
        """Send one event to the socket, if there is one."""
        with self._changed:
            self._outbox.put(event)

    def outgoing(self) -> list[Outgoing]:
        """What is to be sent now, in order."""
        with self._changed:
            return self._outbox.take(self._worker.playout if self._worker else None)

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
        return self._runtime.pipeline(), self._conversation, engine

    def set_state(self, worker: TurnWorker, state: str, **details: float | None) -> None:
        self.tell({"type": "state", "turn": worker.number, "state": state, **details})

    def heard(self, worker: TurnWorker, text: str) -> None:
        """The transcript of a spoken turn."""
        with self._changed:
            if text:
                self._add(worker.log, "user", text)
            self._outbox.put({"type": "heard", "turn": worker.number, "text": text})

    def extend_reply(self, worker: TurnWorker, text: str) -> None:
        with self._changed:
            if worker.reply is None:
                worker.reply = {"role": "assistant", "content": ""}
                worker.log.append(worker.reply)
            worker.reply["content"] += text
            self._bump()

    def add_speech(self, worker: TurnWorker, pcm: np.ndarray, rate_hz: int, text: str) -> None:
        with self._changed:
            if worker is not self._worker or worker.playout.ended or not self.speaks:
                return
            if worker.playout.total == 0:
                self._outbox.speech_began(worker.playout, rate_hz)
            worker.playout.add(pcm, rate_hz, text)
            self._outbox.progressed()

    def count(self, metrics: ReplyMetrics) -> None:
        """A reply has cost this much."""
        self._runtime.telemetry.reply(metrics)

    def turn_ended(self, worker: TurnWorker) -> None:
        """Called once, as the last thing of a turn."""
        with self._changed:
            worker.finish = worker.finish or "stopped"
            worker.running = False
            worker.playout.ended = True
            self._runtime.telemetry.turn(worker.kind, worker.finish, worker.stages)
            if worker.finish == "failed":
                self._show_failure(worker)
            elif worker.finish == "complete" and worker.reply is None:
                self._add(worker.log, "assistant", "*The model had nothing to say.*")
            elif worker.stopped and worker.kind == "voice" and worker.speaks:
                self._keep_heard(worker)
            elif worker.stopped and worker.reply is not None:
                worker.reply["content"] += f"\n\n{TIME_IS_UP if worker.timed_out else '*Stopped.*'}"
            metrics = worker.metrics()
            trimmed = metrics.trimmed_turns if metrics else 0
            if trimmed and worker.reply is not None:
                worker.reply["content"] += f"\n\n{left_out(trimmed)}"
            self._outbox.put(
                {
                    "type": "done",
                    "turn": worker.number,
                    "finish": worker.finish,
                    "stages": worker.stages,
                    "message": worker.error,
                }
            )
            self._bump()

    # Inside; the lock is held

    def _start(self, kind: Kind, speak: bool, begin: Begin, typed: str = "") -> int:
        ticket = self._runtime.admit(self.id, kind)
        with self._changed:
            self.stop()
            self.used_at = time.monotonic()
            self._number += 1
            self._typed, self._failed_text = typed, ""
            worker = TurnWorker(
                self, self._number, kind, speak, begin, ticket, self._worker, self._messages
            )
            self._worker = worker
            self._outbox.put({"type": "turn", "turn": worker.number, "kind": kind})
            if typed:
                self._add(self._messages, "user", typed)
            worker.start()
            return worker.number

    def _keep_heard(self, worker: TurnWorker) -> None:
        """The conversation remembers, and the page shows, only the words that were played."""
        if worker.kind != "voice" or worker.reply is None or self._conversation is None:
            return
        heard = worker.playout.heard()
        self._conversation.keep_heard(heard)
        worker.reply["content"] = f"{heard} …" if heard else "*Stopped before it spoke.*"
        self._bump()

    def _view(self) -> View:
        running = self._worker is not None and self._worker.running
        messages = [dict(message) for message in self._messages]
        return View(self._version, messages, self._number, running, self._failed_text)

    def _show_failure(self, worker: TurnWorker) -> None:
        self._add(worker.log, "assistant", f"**This turn failed.** {worker.error}")
        if worker is self._worker and worker.log is self._messages and worker.reply is None:
            self._failed_text = self._typed

    def _add(self, log: list[dict[str, str]], role: str, content: str) -> None:
        log.append({"role": role, "content": content})
        del log[:-MAX_SHOWN]
        self._bump()

    def _bump(self) -> None:
        self._version += 1
        self._changed.notify_all()
