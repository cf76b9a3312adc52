"""What `listen` shows, made from a dialogue's events: the state of the screen, and its news.

Pure but for its lock. A terminal draws `Screen.snapshot()` and prints the news above; elsewhere
the news alone are printed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from audio.dialogue_events import (
    Event,
    Heard,
    Ignored,
    Measured,
    Play,
    Reply,
    RoundBegan,
    RoundOver,
    SpeechBegan,
    SpeechOver,
    Trouble,
)
from audio.events import Delta, TurnDone
from engine.metrics import ReplyMetrics
from ui.figures import sum_of, summary
from ui.words import sentence

Who = Literal["you", "reply", "figures", "notice"]
_IGNORED = {"noise": "a sound", "back_channel": "no interruption", "echo": "its own echo"}


@dataclass(frozen=True)
class News:
    """A line to keep: something said, the figures of a turn, or something to know.

    `label` is the engine that said it.
    """

    who: Who
    text: str
    label: str = ""


@dataclass(frozen=True)
class View:
    """The screen as it is now. `stages` are {"name", "ms"} of the latest turn that was heard."""

    status: str = "loading"
    hearing: str = ""  # what is being said, as far as it was understood
    reply: str = ""  # being said
    engine: str = ""  # of the turns to come
    answering: str = ""  # the engine of the reply under way
    model: str = ""
    hidden_tokens: int = 0
    metrics: ReplyMetrics = field(default_factory=ReplyMetrics)
    stages: list[dict[str, Any]] = field(default_factory=list)
    total_ms: float | None = None


class Screen:
    """`take` a dialogue's events from any thread; `tell` gets the news, in order."""

    def __init__(self, tell: Callable[[News], None]) -> None:
        self._tell = tell
        self._lock = threading.RLock()
        self._view = View()
        self._generation = 0  # the round that counts
        self._measured: list[dict[str, Any]] = []  # of that round
        self._speaking = False

    def snapshot(self) -> View:
        with self._lock:
            metrics = self._view.metrics
            copy = replace(metrics, token_times_ns=list(metrics.token_times_ns))
            return replace(self._view, metrics=copy)

    def set(self, **changes: Any) -> None:
        """Change fields of the view: `engine`, `model`, `status`, ..."""
        with self._lock:
            self._view = replace(self._view, **changes)

    def notice(self, text: str) -> None:
        """Something to know."""
        self._tell(News("notice", sentence(text)))

    def take(self, event: Event) -> None:
        with self._lock:
            self._take(event)

    # Inside; the lock is held

    def _take(self, event: Event) -> None:
        match event:
            case SpeechBegan():
                self.set(status="hearing you")
            case SpeechOver() if self._view.status == "hearing you":
                self.set(status="listening")
            case Heard(final=False):
                self.set(hearing=event.text)
            case Heard():
                self._heard(event)
            case RoundBegan():
                self._begin(event)
            case Reply() if event.generation == self._generation:
                self._reply(event)
            case Play() if not self._speaking:
                self._speaking = True
                self.set(status="speaking")
            case Measured():
                self._measured = [{"name": s.name, "ms": s.ms} for s in event.stages]
                self.set(stages=self._measured, total_ms=event.total_ms)
            case Ignored() if event.text:
                self.notice(f"heard “{event.text}”: {_IGNORED[event.why]}")
            case Trouble():
                self.notice(event.message)
            case RoundOver() if event.generation == self._generation:
                self._over(event)

    def _heard(self, event: Heard) -> None:
        self.set(hearing="", status="thinking")
        if event.text:
            self._tell(News("you", event.text))

    def _begin(self, event: RoundBegan) -> None:
        self._generation, self._measured, self._speaking = event.generation, [], False
        metrics = ReplyMetrics(engine=self._view.answering, model=self._view.model)
        self.set(reply="", hearing="", status="thinking", metrics=metrics)

    def _reply(self, event: Reply) -> None:
        match event.event:
            case Delta():
                self.set(reply=self._view.reply + event.event.text)
                if event.event.token is not None:
                    self._view.metrics.token_times_ns.append(event.event.token.time_ns)
            case TurnDone() if event.event.metrics is not None:
                self.set(metrics=event.event.metrics)

    def _over(self, event: RoundOver) -> None:
        record = event.record
        self.set(status="listening", reply="", hearing="")
        if event.finish == "failed":
            self.notice(event.message)
        if event.finish in ("superseded", "no_speech", "failed"):
            return
        self._tell(News("reply", _said(event), record.engine))
        if record.metrics is not None:
            stages = [{"name": s.name, "ms": s.ms} for s in record.stages]
            heard = record.total_ms if self._measured else None
            self._tell(News("figures", f"{summary(record.metrics)}\n{sum_of(stages, heard)}"))


def _said(event: RoundOver) -> str:
    """The reply as it is remembered: of an interrupted one, what was heard."""
    if event.finish == "interrupted":
        return f"{event.heard} …" if event.heard else "(interrupted before it spoke)"
    reply = event.record.reply.strip()
    if event.finish == "stopped":
        return f"{event.heard or reply} … (stopped)"
    return reply or "(The model had nothing to say.)"
