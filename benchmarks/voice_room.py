"""A room in real time: speech goes in at its own pace, and a player says when it was audible.

Nothing here asks the dialogue how fast it was: the ends of speech are those of the sound that was
spoken, the beginning of the answer is when the player put out its first audible sample.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from audio.dialogue import Dialogue
from audio.dialogue_events import Duck, Event, Flush, Pause, Play, PlayEnd, Resume
from audio.frames import STT_RATE_HZ
from audio.vad import BLOCK

TICK_S = 0.01  # of the player: a sound card's period
REPORT_S = 0.05
AUDIBLE = 0.005 * 32767
DUCKED = 0.25


@dataclass
class Player:
    """Plays what it is told in real time, in a thread, and reports it."""

    dialogue: Dialogue | None = None
    heard_at: dict[int, float] = field(default_factory=dict)  # generation: first audible sample
    last_heard_at: dict[int, float] = field(default_factory=dict)  # generation: last such sample
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _queue: list[np.ndarray] = field(default_factory=list)
    _generation: int = 0
    _rate_hz: int = 22050
    _played: int = 0
    _began: float | None = None
    _paused: bool = False
    _gain: float = 1.0
    _stopping: threading.Event = field(default_factory=threading.Event)

    def take(self, event: Event) -> None:
        """Obey a dialogue's event."""
        with self._lock:
            if isinstance(event, Play):
                if event.generation != self._generation:
                    self._begin(event.generation, event.rate_hz)
                self._queue.append(event.pcm)
            elif isinstance(event, PlayEnd) or getattr(event, "generation", 0) != self._generation:
                return
            elif isinstance(event, Duck):
                self._gain = DUCKED if event.on else 1.0
            elif isinstance(event, Pause):
                self._paused = True
            elif isinstance(event, Resume):
                self._paused, self._gain = False, 1.0
            elif isinstance(event, Flush):
                self._queue.clear()

    def start(self) -> None:
        threading.Thread(target=self._run, name="player", daemon=True).start()

    def close(self) -> None:
        self._stopping.set()

    def _begin(self, generation: int, rate_hz: int) -> None:
        self._queue.clear()
        self._generation, self._rate_hz = generation, rate_hz
        self._played, self._began, self._paused, self._gain = 0, None, False, 1.0

    def _run(self) -> None:
        due = reported = time.perf_counter()
        while not self._stopping.is_set():
            due += TICK_S
            time.sleep(max(0.0, due - time.perf_counter()))
            with self._lock:
                now, first = time.perf_counter(), self._put_out()
            if first or now - reported >= REPORT_S:
                reported = now
                self._report()

    def _put_out(self) -> bool:
        """One period of sound; whether the generation's first was in it."""
        block = self._next_block()
        now, before = time.perf_counter(), self._began
        loud = np.flatnonzero(np.abs(block * self._gain) > AUDIBLE)
        if len(block) and self._began is None:
            self._began = now
        if len(loud):
            self.heard_at.setdefault(self._generation, now + float(loud[0]) / self._rate_hz)
            self.last_heard_at[self._generation] = now + float(loud[-1]) / self._rate_hz
        return before is None and self._began is not None

    def _next_block(self) -> np.ndarray:
        wanted = int(TICK_S * self._rate_hz)
        parts: list[np.ndarray] = []
        while wanted and self._queue and not self._paused:
            part = self._queue[0][:wanted]
            self._queue[0] = self._queue[0][len(part) :]
            if not len(self._queue[0]):
                self._queue.pop(0)
            parts.append(part)
            wanted -= len(part)
        block = np.concatenate([*parts, np.zeros(0, np.int16)])
        self._played += len(block)
        return block

    def _report(self) -> None:
        if self.dialogue is not None and self._began is not None:
            ago_ms = (time.perf_counter() - self._began) * 1000
            self.dialogue.played(self._generation, self._played, None, ago_ms)


class Speaker:
    """Speaks into a dialogue in real time; the room is never quite silent."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._start = time.perf_counter()
        self._spoken = 0  # samples
        self._rest = np.zeros(0, np.float32)
        self._noise = np.random.default_rng(7)

    def say(self, sound: np.ndarray) -> float:
        """Speak float32 [n] at 16 kHz; returns when its first sample sounded."""
        began = self._start + (self._spoken + len(self._rest)) / STT_RATE_HZ
        noise = self._noise.standard_normal(len(sound)).astype(np.float32) * np.float32(3e-4)
        self._rest = np.concatenate([self._rest, sound + noise])
        while len(self._rest) >= BLOCK:
            block, self._rest = self._rest[:BLOCK], self._rest[BLOCK:]
            self._spoken += BLOCK
            due = self._start + self._spoken / STT_RATE_HZ
            time.sleep(max(0.0, due - time.perf_counter()))
            self._dialogue.push(block)
        return began

    def quiet(self, seconds: float) -> None:
        self.say(np.zeros(int(seconds * STT_RATE_HZ), np.float32))

    def quiet_until(self, condition: Callable[[], bool], patience_s: float = 20.0) -> bool:
        """Whether it came true."""
        end = time.perf_counter() + patience_s
        while time.perf_counter() < end:
            if condition():
                return True
            self.quiet(BLOCK / STT_RATE_HZ)
        return condition()
