"""Samples between an audio callback and the rest: one writer, one reader, neither waits."""

from __future__ import annotations

import numpy as np


class Ring:
    """The latest `capacity` frames, for one writing and one reading thread.

    The writer never waits: what the reader did not take in time is overwritten, and counted in
    `lost`. Frames are numbered from 0; `time_of` gives a number's moment on the clock of the
    times that were written.
    """

    def __init__(self, capacity: int, rate_hz: int, channels: int = 1) -> None:
        self.lost = 0  # frames
        self.rate_hz = rate_hz
        self._frames = np.zeros((capacity, channels), np.float32)
        # A reader that is overtaken while it copies must know: what lies below `_claimed -
        # capacity` may be overwritten already, what lies below `_written` is whole.
        self._claimed = self._written = self._read = 0
        self._stamp = (0, 0.0)  # a frame's number and its moment, replaced as one

    @property
    def written(self) -> int:
        """Frames ever written, which is the number of the next."""
        return self._written

    @property
    def taken(self) -> int:
        """The number of the next frame that will be read."""
        return self._read

    @property
    def waiting(self) -> int:
        """Frames that the reader could take."""
        return min(self._written - self._read, len(self._frames))

    @property
    def room(self) -> int:
        """Frames that can be written without losing any."""
        return len(self._frames) - self.waiting

    def write(self, frames: np.ndarray, time_s: float = 0.0) -> None:
        """Append float32 [n, channels], n at most the capacity; the first one is of `time_s`."""
        size, start = len(self._frames), self._written
        self._claimed = start + len(frames)
        at = start % size
        first = min(len(frames), size - at)
        self._frames[at : at + first] = frames[:first]
        self._frames[: len(frames) - first] = frames[first:]
        self._stamp = (start, time_s)
        self._written = start + len(frames)

    def read(self, limit: int | None = None) -> np.ndarray:
        """Everything that waits, at most `limit` frames: float32 [n, channels], a copy."""
        size, end = len(self._frames), self._written
        start = max(self._read, end - size)
        if limit is not None:
            end = min(end, start + limit)
        at, first = start % size, size - start % size
        part = self._frames[at : at + (end - start)]
        copied = np.concatenate([part, self._frames[: max(0, end - start - first)]])
        whole = min(end, max(start, self._claimed - size))
        self.lost += whole - self._read
        self._read = end
        return copied[whole - start :]

    def skip_to(self, number: int) -> None:
        """Forget what waits below frame `number`."""
        self._read = max(self._read, min(number, self._written))

    def time_of(self, number: int) -> float:
        """When frame `number` is or was heard, from the latest write and the rate [s]."""
        at, time_s = self._stamp
        return time_s + (number - at) / self.rate_hz
