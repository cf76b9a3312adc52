"""One round of a dialogue: an utterance or a typed text, and the reply to it.

A round may begin on trial, while it is not yet certain that the speaker has finished. Then what
it produces is held, and it can be dropped without a trace.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from audio.dialogue_events import Finish, Kind, Why
from audio.events import Event, Speech, TurnDone, TurnFailed
from audio.frames import to_pcm16
from audio.playback import Playback
from audio.record import TurnRecord
from audio.waterfall import Waterfall

if TYPE_CHECKING:
    from audio.turn import Turn


class Talk(Protocol):
    """What a round needs of a conversation."""

    def keep_heard(self, text: str) -> None: ...

    def retract(self) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What answers a round: `begin(text)` makes its turn, which must not join `conversation` by
    itself. `engine` is the name that the reply is labelled with."""

    conversation: Talk
    begin: Callable[[str], Turn]
    engine: str = ""


class Request:
    """What whoever provides the parts may know of a round, and its way to hear of a stop."""

    def __init__(self, generation: int, kind: Kind, speak: bool, options: object = None) -> None:
        self.generation, self.kind, self.speak, self.options = generation, kind, speak, options
        self.text = ""
        self._stopped = threading.Event()
        self._calls: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def on_stop(self, call: Callable[[], None]) -> None:
        """Have `call` called when the round is stopped; at once if it has been."""
        self._calls.append(call)
        if self.stopped:
            call()

    def stop(self) -> None:
        """Whatever is done for the round ends as soon as it can. Idempotent."""
        self._stopped.set()
        for call in list(self._calls):
            call()


@dataclass(eq=False)
class Round:
    """The state of one round; its dialogue's lock guards it, but for `ended`."""

    request: Request
    waterfall: Waterfall
    samples: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    speech_end: int = 0  # in `samples`
    start_sample: int = 0  # of the microphone
    pause: int | None = None  # the pause it began at
    pressed: bool = False  # by push-to-talk
    said: str = ""  # in `samples`
    text: str | None = None  # to be answered; None until it is known
    judged: bool = False  # by the sound, as complete with this probability:
    sounds_complete: float | None = None
    why_ignored: Why | None = None
    turn: Turn | None = None
    parts: Parts | None = None
    confirmed: bool = False  # the speaker has finished
    begun: bool = False  # and the listener knows the text
    answering: bool = False  # its reply is being made, or was
    dropped: bool = False  # leaves no trace in the conversation
    joined: bool = False  # the conversation goes on from it
    gone: bool = False  # and never will, or no longer does
    paused: bool = False
    finish: Finish | None = None
    failure: str = ""
    done: TurnDone | None = None
    generated: bool = False  # no further event comes from its turn
    over: bool = False
    sent_s: float | None = None  # when its first sound was handed out
    held: list[Event] = field(default_factory=list)  # until it has begun, or speech in a pause
    playback: Playback = field(default_factory=Playback)
    record: TurnRecord = field(init=False)
    ended: threading.Event = field(default_factory=threading.Event)  # its work is over

    def __post_init__(self) -> None:
        self.record = TurnRecord(self.generation, self.request.kind)

    @property
    def generation(self) -> int:
        return self.request.generation

    @property
    def kind(self) -> Kind:
        return self.request.kind

    @property
    def active(self) -> bool:
        """Whether its reply is under way: being made, or not yet played."""
        if self.finish is not None or self.dropped:
            return False
        return not self.generated or self.playback.playing or bool(self.held)

    def stop(self) -> None:
        """Its turn ends within a token; nothing more of it will be played."""
        self.request.stop()
        self.playback.drop()
        self.held.clear()
        if self.turn is not None:
            self.turn.stop()

    def settle(self) -> None:
        """Give the conversation what it shall remember: all of the reply, or what was heard.

        Only when the reply has ended and the round has begun; the next reply waits for it.
        Whatever comes later, as an interruption of the voice, is settled again. A turn of whose
        reply nothing is left leaves no trace: from empty answers a model learns to be silent.
        """
        if self.gone or self.turn is None or self.parts is None:
            return
        cut = self.finish in ("interrupted", "stopped") and self.kind == "voice"
        cut = cut and self.request.speak
        kept = self.playback.heard() if cut else self.done.reply if self.done else ""
        if self.dropped or not kept.strip():
            self.gone = True
            if self.joined:
                self.parts.conversation.retract()
            return
        if not self.joined:
            self.turn.join()
            self.joined = True
        if cut:
            self.parts.conversation.keep_heard(kept)

    def heard(self) -> str:
        """The words of the reply that were played; all of it when it was for the eyes."""
        if self.request.speak:
            return self.playback.heard()
        return self.done.reply if self.done else ""

    def metrics(self) -> dict[str, Any] | None:
        metrics = self.done.metrics if self.done else self.turn.metrics() if self.turn else None
        return metrics.as_dict() if metrics else None

    def take(self, event: Event) -> None:
        """Note what the turn's last events say."""
        if isinstance(event, TurnDone):
            self.done = event
        elif isinstance(event, TurnFailed):
            self.failure = event.message
            self.finish = self.finish or "failed"

    def count(self, speech: Speech) -> None:
        """`speech` was handed out to be played."""
        self.playback.add(speech.pcm, speech.rate_hz, speech.text)
        self.record.answer.append(speech.pcm)
        self.record.rate_hz = speech.rate_hz

    def close(self) -> TurnRecord:
        """The record of what it was."""
        self.over = True
        record = self.record
        record.transcript, record.finish = self.text or "", self.finish or "complete"
        record.reply = self.done.reply if self.done else ""
        record.heard, record.metrics = self.heard(), self.metrics()
        record.engine = self.parts.engine if self.parts else ""
        record.stages, record.total_ms = self.waterfall.stages(), self.waterfall.total_ms
        record.question, record.speech_end_sample = to_pcm16(self.samples), self.speech_end
        if self.playback.dropped:  # what was not played was not heard
            record.answer = _first(record.answer, self.playback.played)
        self.samples = self.samples[:0]
        return record


def _first(pieces: list[np.ndarray], samples: int) -> list[np.ndarray]:
    """So many samples of `pieces`, int16 [n] each."""
    kept = []
    for piece in pieces:
        kept.append(piece[:samples])
        samples -= len(kept[-1])
    return [piece for piece in kept if len(piece)]
