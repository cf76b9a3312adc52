"""Joins a session to its dialogue: opens its turns, and shows on the page what happens in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from audio import dialogue_events as told
from audio.dialogue import Detector, Dialogue
from audio.rounds import Parts, Request
from ui.services import Runtime
from ui.turn_worker import TurnWorker
from ui.words import sentence

if TYPE_CHECKING:
    from ui.session import Session


class Floor:
    """One session's. `numbers` are those of its turns, whoever begins them."""

    def __init__(self, session: Session, runtime: Runtime, numbers: Iterator[int]) -> None:
        self._session, self._runtime = session, runtime
        self._workers: dict[int, TurnWorker] = {}  # of rounds that began, or are on trial
        self.dialogue = Dialogue(
            self._open,
            lambda samples: runtime.pipeline().transcribe(samples),
            self._on,
            _LazyDetector(runtime),
            None if runtime.services.make_judge is None else self._judge,
            numbers=numbers,
        )

    def say(self, text: str, worker: TurnWorker) -> None:
        """Answer typed `text` as `worker`'s turn."""
        self._workers[worker.number] = worker
        self.dialogue.speak = worker.speaks
        self.dialogue.say(text, generation=worker.number, on_stop=worker.stop)

    def answer(self, samples: np.ndarray, silence_ms: float) -> int:
        """Answer speech that came as a whole."""
        self.dialogue.speak = self._session.speaks
        return self.dialogue.answer(samples, silence_ms)

    # For the dialogue, from its threads

    def _open(self, request: Request) -> AbstractContextManager[Parts | None]:
        return self._worker(request.generation, request.speak).opened(request)

    def _judge(self, samples: np.ndarray) -> float | None:
        judge = self._runtime.judge()
        return None if judge is None else judge(samples)

    def _worker(self, generation: int, speaks: bool | None = None) -> TurnWorker:
        worker = self._workers.get(generation)
        if worker is None:
            speaks = self._session.speaks if speaks is None else speaks
            made = TurnWorker(self._session, generation, "voice", speaks)
            worker = self._workers.setdefault(generation, made)  # two threads may ask at once
        return worker

    def _on(self, event: told.Event) -> None:
        match event:
            case told.RoundBegan(generation, "voice"):
                self._session.begin_round(self._worker(generation))
            case told.Heard(generation, text, True):
                self._heard(generation, text)
            case told.Reply(generation, reply):
                self._worker(generation).follow(reply)
            case told.Play(generation, pcm, rate_hz, text):
                self._worker(generation).voiced(len(text))
                self._session.add_speech(self._worker(generation), pcm, rate_hz, text)
            case told.PlayEnd(generation):
                self._session.end_speech(self._worker(generation))
            case told.Flush(generation):
                self._session.flush(self._worker(generation))
            case told.Measured(generation, stages, _):
                self._session.measured(self._worker(generation), stages)
            case told.RoundOver():
                self._over(event)
            case told.TakenBack(generation):
                self._take_back(generation)
            case _:
                self._tell(event)

    def _heard(self, generation: int, text: str) -> None:
        if self._workers[generation].kind == "voice":
            self._session.heard(self._workers[generation], text)

    def _over(self, event: told.RoundOver) -> None:
        worker = self._workers.pop(event.generation, None)
        if worker is not None:
            worker.over(event.finish, event.message)
            self._session.round_over(worker, event.finish, event.heard, event.record)

    def _take_back(self, generation: int) -> None:
        worker = self._workers.pop(generation, None)
        if worker is not None and worker.admitted:
            self._runtime.give_back(self._session.id)
        self._session.tell({"type": "taken_back", "turn": generation})

    def _tell(self, event: told.Event) -> None:
        message = _message(event)
        if message is None:
            return
        if isinstance(event, told.Pause | told.Resume):
            self._session.pause_speech(isinstance(event, told.Pause))
        self._session.tell(message)


def _message(event: told.Event) -> dict[str, Any] | None:
    """What the socket's client is told of an event that changes nothing here."""
    match event:
        case told.SpeechBegan():
            return {"type": "hearing", "on": True}
        case told.SpeechOver():
            return {"type": "hearing", "on": False}
        case told.Heard(generation, text, False):
            return {"type": "partial", "turn": generation, "text": text}
        case told.Ignored(text, why):
            return {"type": "ignored", "text": text, "why": why}
        case told.Duck(generation, on):
            return {"type": "duck", "turn": generation, "on": on}
        case told.Pause(generation):
            return {"type": "pause", "turn": generation}
        case told.Resume(generation):
            return {"type": "resume", "turn": generation}
        case told.Trouble(message):
            return {"type": "error", "message": sentence(message)}
    return None


class _LazyDetector:
    """Loaded when somebody first speaks: most who type never do."""

    def __init__(self, runtime: Runtime) -> None:
        self._make = runtime.services.make_vad
        self._made: Detector | None = None

    def reset(self) -> None:
        if self._made is not None:
            self._made.reset()

    def probability(self, block: np.ndarray) -> float:
        if self._made is None:
            self._made = self._make()
        return self._made.probability(block)
