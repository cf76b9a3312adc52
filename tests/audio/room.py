"""A room on a virtual clock: somebody who speaks from a script, a dialogue, and a loudspeaker.

Time moves 8 ms at a time and only here. Work that the dialogue begins is done at once, and what it
gives is delivered when `Costs` say that it would have been ready. So a minute of talk takes as
long as the models in it, and with stand-ins for them no time at all; and it is the same each run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar

import numpy as np

from audio.dialogue import Dialogue, DialogueConfig
from audio.dialogue_events import (
    Duck,
    Event,
    Flush,
    Heard,
    Measured,
    Pause,
    Play,
    PlayEnd,
    Resume,
    RoundOver,
)
from audio.events import Clause, Delta, Speech
from audio.frames import STT_RATE_HZ
from audio.record import TurnRecord

T = TypeVar("T")

BLOCK = 512
STEP = 128  # samples of the microphone: 8 ms
STEP_S = STEP / STT_RATE_HZ
REPORT_S = 0.048  # between two reports of the player
DUCKED = 0.25
AUDIBLE = 0.01
PATIENCE_S = 90.0  # of virtual time, for what a script waits for


@dataclass(frozen=True)
class Costs:
    """What work takes, in milliseconds of virtual time."""

    transcribe: float = 150.0
    judge: float = 60.0
    prefill: float = 40.0
    token: float = 6.0
    synthesis: float = 70.0


class VirtualRunner:
    """Does work at once and delivers it later."""

    def __init__(self, clock: Callable[[], float], costs: Costs) -> None:
        self._clock, self._costs = clock, costs
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def run(self, work: Callable[[], Iterable[T]], deliver: Callable[[T], None]) -> None:
        for at_s, result in self._timed(list(work())):
            call: Callable[[], None] = partial(deliver, result)
            heapq.heappush(self._due, (at_s, next(self._order), call))

    def deliver_due(self) -> None:
        while self._due and self._due[0][0] <= self._clock() + 1e-9:
            heapq.heappop(self._due)[2]()

    def _timed(self, results: list[T]) -> list[tuple[float, T]]:
        """When each result is ready: tokens follow each other, and clauses are spoken beside."""
        costs = self._costs
        decode = speech = self._clock()
        clauses: dict[str, float] = {}
        first = True
        timed: list[tuple[float, T]] = []
        for result in results:
            if isinstance(result, str | Exception):
                decode = at_s = decode + costs.transcribe / 1000
            elif isinstance(result, float) or result is None:
                at_s = decode + costs.judge / 1000
            elif isinstance(result, Delta):
                decode = at_s = decode + (costs.prefill if first else costs.token) / 1000
                first = False
            elif isinstance(result, Clause):
                at_s = clauses[result.text] = decode
            elif isinstance(result, Speech):
                speech = at_s = max(speech, clauses[result.text]) + costs.synthesis / 1000
            else:
                at_s = max(decode, speech)
            timed.append((at_s, result))
        return timed


@dataclass
class Loudspeaker:
    """Plays what it is told, in time, and reports it. `track` is all that it ever put out."""

    played_of: dict[int, int] = field(default_factory=dict)
    track: list[np.ndarray] = field(default_factory=list)  # float32, at `rate_hz`
    rate_hz: int = 0
    ducked: bool = False
    paused: bool = False
    _queue: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    _generation: int = 0
    _owed: float = 0.0  # part of a sample

    def take(self, event: Event) -> None:
        if isinstance(event, Play):
            if event.generation != self._generation:
                self._queue = self._queue[:0]
                self._generation, self.ducked, self.paused = event.generation, False, False
            self.rate_hz = event.rate_hz
            self._queue = np.concatenate([self._queue, event.pcm.astype(np.float32) / 32768])
        elif isinstance(event, Duck) and event.generation == self._generation:
            self.ducked = event.on
        elif isinstance(event, Pause) and event.generation == self._generation:
            self.paused = True
        elif isinstance(event, Resume) and event.generation == self._generation:
            self.paused = self.ducked = False
        elif isinstance(event, Flush) and event.generation == self._generation:
            self._queue = self._queue[:0]
            self.ducked = self.paused = False

    def advance(self, seconds: float) -> None:
        if not self.rate_hz:
            return
        self._owed += seconds * self.rate_hz
        wanted, self._owed = int(self._owed), self._owed % 1
        out = np.zeros(wanted, np.float32)
        if not self.paused:
            ready, self._queue = self._queue[:wanted], self._queue[wanted:]
            out[: len(ready)] = ready * (DUCKED if self.ducked else 1.0)
            played = self.played_of.get(self._generation, 0)
            self.played_of[self._generation] = played + len(ready)
        self.track.append(out)

    @property
    def audible(self) -> bool:
        """Whether something is coming out of it now."""
        return any(len(part) and np.abs(part).max() > AUDIBLE for part in self.track[-3:])


class Room:
    """Speaks into a dialogue and listens to it. Everything that happened is in `events`."""

    def __init__(
        self,
        open_turn: Any,
        transcribe: Callable[[np.ndarray], str],
        detector: Any,
        judge: Callable[[np.ndarray], float] | None = None,
        config: DialogueConfig | None = None,
        costs: Costs | None = None,
    ) -> None:
        self.now_s = 0.0
        self.events: list[tuple[float, Event]] = []
        self.loudspeaker = Loudspeaker()
        self.echo = 0.0  # share of the loudspeaker that the microphone hears
        self._runner = VirtualRunner(lambda: self.now_s, costs or Costs())
        self._pending = np.zeros(0, np.float32)
        self._report_s = 0.0
        self.dialogue = Dialogue(
            open_turn,
            transcribe,
            self._listener,
            detector,
            judge,
            config,
            self._runner,
            lambda: self.now_s,
        )
        self.dialogue.listen(True)

    # What somebody does in it

    def hear(self, *sounds: np.ndarray) -> Room:
        """The microphone hears float32 [n] at 16 kHz each."""
        for sound in sounds:
            for at in range(0, len(sound) - len(sound) % STEP, STEP):
                self._step(sound[at : at + STEP])
        return self

    def quiet(self, seconds: float) -> Room:
        """Nobody speaks."""
        return self.hear(np.zeros(int(seconds * STT_RATE_HZ), np.float32))

    def until(self, condition: Callable[[], bool]) -> Room:
        """Nobody speaks until `condition`, which must come true."""
        end = self.now_s + PATIENCE_S
        while not condition():
            assert self.now_s < end, f"nothing came of it; so far: {self.told()}"
            self._step(np.zeros(STEP, np.float32))
        return self

    def until_audible(self, seconds: float = 0.0) -> Room:
        """Until the reply can be heard, and `seconds` longer."""
        self.until(lambda: self.loudspeaker.audible)
        return self.quiet(seconds)

    def until_idle(self) -> Room:
        """Until nobody has anything left to say."""
        return self.quiet(0.6).until(lambda: not self.dialogue.active)

    # What happened

    def of(self, kind: type[T]) -> list[T]:
        """The events of one kind."""
        return [event for _, event in self.events if isinstance(event, kind)]

    def when(self, kind: type[Any]) -> float:
        """The time of the last event of that kind."""
        return [at for at, event in self.events if isinstance(event, kind)][-1]

    @property
    def turns(self) -> list[str]:
        """What was taken for a turn, in order."""
        return [event.text for event in self.of(Heard) if event.final]

    @property
    def over(self) -> list[tuple[str, str]]:
        """(finish, heard) of the rounds that are over."""
        return [(event.finish, event.heard) for event in self.of(RoundOver)]

    @property
    def records(self) -> list[TurnRecord]:
        return [event.record for event in self.of(RoundOver)]

    def told(self) -> list[str]:
        """Everything but the sound, in short."""
        skipped = (Play, PlayEnd)
        return [f"{at:.2f} {event}"[:100] for at, event in self.events
                if not isinstance(event, skipped)]  # fmt: skip

    # Inside

    def _listener(self, event: Event) -> None:
        self.events.append((self.now_s, event))
        self.loudspeaker.take(event)

    def _step(self, sound: np.ndarray) -> None:
        self.now_s += STEP_S
        self._runner.deliver_due()
        self.loudspeaker.advance(STEP_S)
        self._report()
        if self.echo and self.loudspeaker.track:
            sound = sound + self.echo * _at_16k(self.loudspeaker.track[-1], len(sound))
        self._pending = np.concatenate([self._pending, sound.astype(np.float32)])
        while len(self._pending) >= BLOCK:
            block, self._pending = self._pending[:BLOCK], self._pending[BLOCK:]
            self.dialogue.push(block)

    def _report(self) -> None:
        speaker = self.loudspeaker
        generation = speaker._generation
        played = speaker.played_of.get(generation, 0)
        first = played > 0 and not any(
            event.generation == generation for event in self.of(Measured)
        )
        if first or self.now_s - self._report_s >= REPORT_S:
            self._report_s = self.now_s
            if played:
                ago_ms = 1000 * played / speaker.rate_hz
                self.dialogue.played(generation, played, None, ago_ms)


def _at_16k(sound: np.ndarray, length: int) -> np.ndarray:
    if not len(sound):
        return np.zeros(length, np.float32)
    places = np.linspace(0, len(sound) - 1, length)
    return np.interp(places, np.arange(len(sound)), sound).astype(np.float32)
