"""What a session exchanges with its voice socket: events, speech, and reports of its playback."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ui.outbox import Outbox, Outgoing
from ui.playout import Playout

if TYPE_CHECKING:
    from audio.dialogue import Dialogue
    from ui.turn_worker import TurnWorker


class Channel(ABC):
    """One visitor's end of the socket. Every method is safe from any thread and does not block."""

    def __init__(self) -> None:
        self.changed = threading.Condition()  # guards all of a session
        self._worker: TurnWorker | None = None  # of the latest turn
        self._number = 0  # of the latest turn
        self._sound = False
        self._outbox = Outbox()
        self._spoken: list[np.ndarray] = []  # of the latest turn, int16 [n] each

    @abstractmethod
    def stop(self, turn: int | None = None, samples: int = 0) -> None:
        """End the turn under way; the session knows how."""

    @abstractmethod
    def silence(self) -> None:
        """Whether there is a voice may have changed; the session knows what follows."""

    @property
    @abstractmethod
    def dialogue(self) -> Dialogue:
        """Who has the floor."""

    @property
    def speaks(self) -> bool:
        return self._sound and self._outbox.wake is not None

    @property
    def active(self) -> bool:
        """A turn is under way, or its speech is still being played."""
        worker = self._worker
        return worker is not None and (worker.running or worker.playout.playing)

    def attach(self, wake: Callable[[], None]) -> None:
        """A socket took the session over: `wake` is called, briefly, when there is outgoing."""
        with self.changed:
            self._outbox.join(wake)
            self._outbox.put({"type": "ready", "turn": self._number})
        self.silence()

    def detach(self, wake: Callable[[], None]) -> None:
        """The socket closed: nobody listens any more, so the turn under way ends."""
        with self.changed:
            if self._outbox.wake != wake:  # another socket has taken over
                return
            self._outbox.wake = None
            self._sound = False
        self.dialogue.close()
        self.silence()
        self.stop()

    def tell(self, event: dict[str, Any]) -> None:
        """Send one event to the socket, if there is one."""
        with self.changed:
            self._outbox.put(event)

    def outgoing(self) -> list[Outgoing]:
        """What is to be sent now, in order."""
        with self.changed:
            playout = self._worker.playout if self._worker else None
            messages, stalled = self._outbox.take(playout), _take_stall(playout)
        if stalled:
            self.dialogue.mute()
        return messages

    def set_sound(self, on: bool) -> None:
        """Whether the client wants speech, and can play it. Off silences a turn under way."""
        with self.changed:
            self._sound = on
        self.silence()

    def played(
        self,
        turn: int,
        samples: int,
        done: bool,
        waited_ms: float | None = None,
        ago_ms: float = 0.0,
    ) -> None:
        """The client's report on the speech of `turn`; see `protocol.Played`."""
        with self.changed:
            worker = self._worker
            if worker is None or worker.number != turn:
                return
            worker.playout.report(worker.playout.sent if done else samples)
            played = worker.playout.played
            self._outbox.progressed()
        self.dialogue.played(turn, played, waited_ms, ago_ms)

    def end_speech(self, worker: TurnWorker) -> None:
        """That was all of a turn's speech."""
        with self.changed:
            worker.playout.ended = True
            self._outbox.progressed()

    def flush(self, worker: TurnWorker) -> None:
        """Nothing more of a turn is to be heard."""
        with self.changed:
            worker.playout.drop()
            self._outbox.put({"type": "flush", "turn": worker.number})

    def pause_speech(self, on: bool) -> None:
        """The latest turn's speech waits, or goes on."""
        with self.changed:
            if self._worker is not None:
                self._worker.playout.paused = on
            self._outbox.progressed()

    def add_speech(self, worker: TurnWorker, pcm: np.ndarray, rate_hz: int, text: str) -> None:
        """The voice for `text` is ready: int16 [n] at `rate_hz`."""
        with self.changed:
            if worker is not self._worker or worker.playout.ended or not self.speaks:
                return
            if worker.playout.total == 0:
                self._outbox.speech_began(worker.playout, rate_hz)
            worker.playout.add(pcm, rate_hz)
            self._spoken.append(pcm)
            self._outbox.progressed()


def _take_stall(playout: Playout | None) -> bool:
    """Whether the client has just stopped playing for good."""
    stalled = playout is not None and playout.stalled
    if playout is not None:
        playout.stalled = False
    return stalled
