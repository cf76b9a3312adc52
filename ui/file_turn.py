"""One turn from a recording: the page's own dialogue, on a clock that skips what nobody computes.

So its waterfall means what the page's means. All that the recording holds is one turn: the reply
is not let out before the last word of it, and who goes on speaking before anything was heard of a
reply has not been answered yet.
"""

from __future__ import annotations

import argparse
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from audio.dialogue import Detector, Dialogue
from audio.dialogue_events import (
    Event,
    Heard,
    Measured,
    Play,
    PlayEnd,
    Reply,
    RoundBegan,
    RoundOver,
)
from audio.events import Delta, Stage, TurnDone
from audio.outlet import Outlet
from audio.player import Player, Report
from engine.errors import UnpausedError
from engine.metrics import ReplyMetrics
from ui.listen_assistant import Assistant
from ui.listen_room import STEP, FileRoom, SkippingClock

_POLL_S = 0.05


@dataclass
class Outcome:
    """What has come of the latest round so far."""

    generation: int = 0
    transcript: str = ""
    words: str = ""  # of the reply, as they come
    reply: str = ""  # all of it
    failure: str = ""
    metrics: ReplyMetrics | None = None
    stages: list[Stage] = field(default_factory=list)
    first_audio_ms: float | None = None  # None while there is none
    speech: list[np.ndarray] = field(default_factory=list)  # int16 [n] each
    rate_hz: int = 0

    def as_dict(self, options: argparse.Namespace) -> dict[str, Any]:
        """JSON-ready: what was heard and said, the engine's figures, and the stages."""
        metrics = self.metrics or ReplyMetrics(engine=options.engine, model=options.model)
        first_audio_ms = self.first_audio_ms
        return {
            "transcript": self.transcript,
            "reply": self.reply,
            **metrics.as_dict(),
            "stages": [{"name": stage.name, "ms": round(stage.ms, 3)} for stage in self.stages],
            "first_audio_ms": None if first_audio_ms is None else round(first_audio_ms, 3),
        }


class FileTurn:
    """One turn of `assistant`'s, taken by `run`. With `show` it is printed as it is answered."""

    def __init__(self, assistant: Assistant, detector: Detector, show: bool) -> None:
        self._assistant, self._detector, self._show = assistant, detector, show
        self._outcome = Outcome()
        self._printed = 0  # characters of the reply
        self._headed = False
        self._audible = threading.Event()  # the reply is, or it never will be
        self._said = threading.Event()  # all of it has been made
        self._player: _PatientPlayer | None = None

    def run(self, samples: np.ndarray, speech_end: int) -> Outcome:
        """What came of float32 [n] at 16 kHz, whose last speech ends at sample `speech_end`.

        Raises `UnpausedError` when it could not be answered.
        """
        room = FileRoom(samples, fast=True)
        dialogue = self._make_dialogue(room)
        player = self._player = _PatientPlayer(
            room.outlet,
            lambda generation, heard, ago_ms: dialogue.played(generation, heard, None, ago_ms),
            room.clock,
            speech_end // STEP,
        )
        try:
            dialogue.listen(True)
            room.run(dialogue, player, self._audible)
            while self._outcome.generation and not self._said.wait(_POLL_S):
                self._print()  # the rest is made; nobody has to hear it
        finally:
            dialogue.close()
        if self._outcome.failure:
            raise UnpausedError(self._outcome.failure)
        self._print(end="\n")
        return self._outcome

    def _make_dialogue(self, room: FileRoom) -> Dialogue:
        return Dialogue(
            self._assistant.open_turn,
            self._assistant.transcribe,
            self._take,
            self._detector,
            judge=self._assistant.judge,
            runner=room.runner,
            clock=room.clock,
        )

    def _print(self, end: str = "") -> None:
        """What is new of the turn; on the thread that runs it, which learns of a closed pipe."""
        outcome = self._outcome
        if not self._show or not outcome.transcript:
            return
        if not self._headed:
            print(f"You: {outcome.transcript}\nUnpaused: ", end="")
            self._headed = True
        new, self._printed = outcome.words[self._printed :], len(outcome.words)
        print(new, end=end, flush=True)

    def _take(self, event: Event) -> None:
        """The dialogue's listener; an earlier round's late events are those of none."""
        assert self._player is not None
        self._player.take(event)
        if isinstance(event, RoundBegan):
            self._outcome = Outcome(event.generation)
            self._said.clear()
        if getattr(event, "generation", None) == self._outcome.generation:
            self._note(event, self._outcome)

    def _note(self, event: Event, outcome: Outcome) -> None:
        assert self._player is not None
        match event:
            case Heard():
                outcome.transcript = event.text
            case Reply(_, Delta() as delta):
                outcome.words += delta.text
            case Reply(_, TurnDone() as done):
                outcome.reply, outcome.metrics = done.reply.strip(), done.metrics
                outcome.stages = outcome.stages or done.stages
            case Play():
                outcome.speech.append(event.pcm)
                outcome.rate_hz = event.rate_hz
            case Measured():
                outcome.stages, outcome.first_audio_ms = event.stages, event.total_ms
                self._audible.set()
            case PlayEnd():
                self._said.set()
            case RoundOver() if event.finish != "superseded":
                outcome.failure = event.message
                self._said.set()
                if event.message or not self._player.patient:
                    self._audible.set()


class _PatientPlayer(Player):
    """Does nothing before so many steps of the room: somebody is still speaking."""

    def __init__(self, outlet: Outlet, report: Report, clock: SkippingClock, steps: int) -> None:
        super().__init__(outlet, report, clock)
        self._steps = steps
        self._early: list[Event] = []
        self._gate = threading.Lock()

    @property
    def patient(self) -> bool:
        return self._steps > 0

    def take(self, event: Event) -> None:
        with self._gate:
            if self.patient:
                self._early.append(event)
            else:
                super().take(event)

    def step(self) -> None:
        with self._gate:
            self._steps -= 1
            if not self.patient:
                for event in self._early:
                    super().take(event)
                self._early.clear()
        super().step()
