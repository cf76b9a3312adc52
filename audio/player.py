"""A dialogue's speech on an outlet: in order, at its rate, ducked, paused, dropped, and reported.

Play, PlayEnd, Duck, Pause, Resume, Flush -> Player -> Outlet -> loudspeaker
                                               \\-> report: what was heard, and when
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from audio.dialogue_events import Duck, Event, Flush, Pause, Play, PlayEnd, Resume
from audio.frames import Resampler, from_pcm16
from audio.outlet import Outlet

# Handed to the outlet ahead of time: enough for a busy machine to be late by, and little enough
# that next to nothing is lost with a loudspeaker that is pulled out.
LEAD_MS = 300
_DUCKED = 0.25  # -12 dB: quiet enough to be talked over, loud enough to be followed
_MAX_HELD_S = 600  # of speech that waits; far past any reply, it bounds memory

Report = Callable[[int, int, float], None]


class Player:
    """`take` any event of a dialogue, and call `step` every few tens of milliseconds.

    `report(generation, samples, ago_ms)`: so many samples of the generation's speech, at its own
    rate, have been heard; the first of them `ago_ms` ago.
    """

    def __init__(
        self, outlet: Outlet, report: Report, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._outlet, self._report, self._clock = outlet, report, clock
        self._lock = threading.Lock()
        self._waiting: deque[np.ndarray] = deque()  # float32 at the outlet's rate
        self._gaps_before = 0  # on other outlets
        self._begin(0)

    def _begin(self, generation: int) -> None:
        self.generation = generation
        self._rate_hz = 0
        self._resampler: Resampler | None = None
        self._total = self._ended = 0  # samples taken; of the whole generation, once it is known
        self._first = self._outlet.written  # the outlet's number of the generation's first frame
        self._lost = 0  # frames heard on an outlet before this one
        self._reported = 0
        self._waiting.clear()
        self._outlet.gain, self._outlet.paused, self._outlet.expecting = 1.0, False, False

    @property
    def gaps(self) -> int:
        """Times that the speech ran dry before its end."""
        return self._gaps_before + self._outlet.gaps

    @property
    def playing(self) -> bool:
        """Whether something is still to be heard."""
        with self._lock:
            return self._reported < self._total

    def take(self, event: Event) -> None:
        """Do what the event says; those that are not about playing are ignored."""
        with self._lock:
            match event:
                case Play():
                    self._play(event)
                case PlayEnd() if event.generation == self.generation:
                    self._end(event.samples)
                case Flush() if event.generation == self.generation:
                    self._flush()
                case Duck() if event.generation == self.generation:
                    self._outlet.gain = _DUCKED if event.on else 1.0
                case Pause() if event.generation == self.generation:
                    self._outlet.paused = True
                case Resume() if event.generation == self.generation:
                    self._outlet.gain, self._outlet.paused = 1.0, False

    def step(self) -> None:
        """Hand on what fits, and report what was heard since the last report."""
        with self._lock:
            self._hand_on()
            generation, heard, ago_ms = self.generation, self._heard(), self._ago_ms()
            news = heard > self._reported
            self._reported = max(self._reported, heard)
        if news:
            self._report(generation, heard, ago_ms)

    def attach(self, outlet: Outlet) -> None:
        """Go on with another outlet; what the one before had not played is gone."""
        with self._lock:
            old, self._outlet = self._outlet, outlet
            self._gaps_before += old.gaps
            self._lost += max(0, old.written - self._first)
            self._first = outlet.written
            outlet.gain, outlet.paused, outlet.expecting = old.gain, old.paused, old.expecting
            if old.rate_hz != outlet.rate_hz:
                self._change_rate(old.rate_hz, outlet.rate_hz)

    # Inside; the lock is held

    def _play(self, event: Play) -> None:
        if event.generation < self.generation:
            return
        if event.generation > self.generation:
            self._flush()
            self._begin(event.generation)
        if self._resampler is None:
            self._rate_hz = event.rate_hz
            self._resampler = Resampler(event.rate_hz, self._outlet.rate_hz)
        room = _MAX_HELD_S * self._rate_hz - self._total
        pcm = event.pcm[: max(0, room)]
        self._total += len(pcm)
        self._outlet.expecting = True
        self._add(self._resampler.push(from_pcm16(pcm)))
        self._hand_on()

    def _end(self, samples: int) -> None:
        self._ended = samples
        if self._resampler is not None:
            self._add(self._resampler.flush())
        self._hand_on()

    def _flush(self) -> None:
        self._waiting.clear()
        self._outlet.flush()
        self._outlet.gain, self._outlet.paused, self._outlet.expecting = 1.0, False, False
        self._total = self._reported  # nothing more will be heard
        self._first = self._outlet.written
        self._resampler = None

    def _add(self, samples: np.ndarray) -> None:
        if len(samples):
            self._waiting.append(samples)

    def _hand_on(self) -> None:
        outlet = self._outlet
        while self._waiting:
            room = min(outlet.room, LEAD_MS * outlet.rate_hz // 1000 - outlet.waiting)
            if room <= 0:
                return
            part, rest = self._waiting[0][:room], self._waiting[0][room:]
            self._waiting.popleft()
            if len(rest):
                self._waiting.appendleft(rest)
            outlet.write(part)
        if self._ended:
            outlet.expecting = False

    def _heard(self) -> int:
        """Samples of the generation, at its own rate."""
        if not self._rate_hz:
            return 0
        frames = self._lost + max(0, self._outlet.heard() - self._first)
        if self._ended and not self._waiting and frames >= self._frames():
            return self._total  # rounding between rates leaves nothing behind
        return min(self._total, frames * self._rate_hz // self._outlet.rate_hz)

    def _frames(self) -> int:
        return self._lost + self._outlet.written - self._first

    def _ago_ms(self) -> float:
        _, audible_s = self._outlet.began
        return max(0.0, (self._clock() - audible_s) * 1000)

    def _change_rate(self, from_hz: int, to_hz: int) -> None:
        self._lost = self._lost * to_hz // from_hz
        waiting = [Resampler(from_hz, to_hz).push(part, last=True) for part in self._waiting]
        self._waiting = deque(waiting)
        if self._resampler is not None:
            self._resampler = Resampler(self._rate_hz, to_hz)
