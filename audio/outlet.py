"""Sound on its way out: what waits to be played, how loud, and what of it was heard.

A loudspeaker's callback, or whatever stands for one, calls `fill`; another thread does the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from audio.ring import Ring

_KEPT_S = 2.0  # that may wait; whoever writes looks at `room`


class Outlet:
    """Frames are numbered as they are written. Times are `clock`'s, of when a sound is audible.

    `gain` scales what is played, `paused` keeps it waiting, and `expecting` says that more is
    about to be written, so that running dry counts as a gap.
    """

    def __init__(self, rate_hz: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.rate_hz = rate_hz
        self.gain = 1.0
        self.paused = self.expecting = False
        self.gaps = 0
        self._clock = clock
        self._waiting = Ring(int(_KEPT_S * rate_hz), rate_hz)
        self._played = Ring(int(_KEPT_S * rate_hz), rate_hz)  # silence too
        self._flushed = 0
        self._sounding = False  # whether the last block ended in sound
        self._began = self._mark = (0, 0.0)  # a frame's number and the time it is audible at

    def fill(self, out: np.ndarray, audible_s: float) -> None:
        """Write the next float32 [n, channels], whose first frame is audible at `audible_s`."""
        self._waiting.skip_to(self._flushed)
        speech = self._waiting.read(0 if self.paused else len(out))
        np.multiply(speech, self.gain, out=out[: len(speech)])
        out[len(speech) :] = 0
        number, count = self._waiting.taken, len(speech)
        if count and not self._sounding:
            self._began = (number - count, audible_s)
        if count:
            self._mark = (number, audible_s + count / self.rate_hz)
        self.gaps += self.expecting and self._sounding and not self.paused and count < len(out)
        self._sounding = count == len(out)
        self._played.write(out[:, :1], audible_s)

    @property
    def room(self) -> int:
        """Frames that `write` takes."""
        return self._waiting.room

    @property
    def waiting(self) -> int:
        """Frames written and neither played nor flushed."""
        return max(0, self._waiting.written - max(self._waiting.taken, self._flushed))

    @property
    def written(self) -> int:
        """The number of the next frame to be written."""
        return self._waiting.written

    @property
    def began(self) -> tuple[int, float]:
        """The frame with which sound last followed silence, and when that is audible."""
        return self._began

    def write(self, samples: np.ndarray) -> None:
        """Play float32 [n], n at most `room`, after what is waiting."""
        self._waiting.write(samples[:, None])

    def heard(self) -> int:
        """The number below which all frames have been heard or dropped."""
        number, time_s = self._mark
        coming = max(0.0, time_s - self._clock()) * self.rate_hz
        return max(0, number - round(coming))

    def flush(self) -> int:
        """Drop what waits. The number below which frames are, or soon will be, heard."""
        self._flushed = self._waiting.written
        return self._mark[0]

    def played(self) -> tuple[np.ndarray, float]:
        """All sound and silence since the last call, float32 [n], and when its first is heard."""
        frames = self._played.read()
        return frames[:, 0], self._played.time_of(self._played.taken - len(frames))
