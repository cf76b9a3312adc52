"""A loudspeaker of this machine: a callback that only copies out of an `Outlet`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from audio.devices import Device, Format, faults_told, open_stream
from audio.microphone import STALLED_S, STARTING_S
from audio.outlet import Outlet
from audio.portaudio import hurry_thread

# What the system keeps ready to play. It is heard late by as much, and after an interruption too.
# Two busy cores brought a callback up to 80 ms late; with 0.08 s the system ran dry 16 times in
# five minutes of talk.
LATENCY_S = 0.1


class Speaker:
    """Plays `outlet` from when it is made until `close`, silence when there is nothing.

    Times are `time.perf_counter`'s. Raises `UnpausedError` when it cannot be opened.
    """

    def __init__(self, device: Device, format: Format) -> None:
        self.device, self.rate_hz = device, format.rate_hz
        self.outlet = Outlet(format.rate_hz)
        self.blocks = 0
        self.underflows = 0  # blocks that came too late for the system
        self._closed = False
        self._beat = time.perf_counter() + STARTING_S
        with faults_told("output", device):
            self._stream = open_stream("output", device, format, LATENCY_S, self._copy)
            self._stream.start()  # from here on the callback runs

    def _copy(self, out: np.ndarray, count: int, times: Any, status: Any) -> None:
        now = time.perf_counter()
        if not self.blocks:
            hurry_thread()
        self.blocks += 1
        ahead = times.outputBufferDacTime - times.currentTime
        if not times.outputBufferDacTime:  # some systems do not know
            ahead = self._stream.latency
        self.outlet.fill(out, now + ahead)
        self.underflows += bool(status.output_underflow)
        self._beat = now

    @property
    def stalled(self) -> bool:
        """Whether it has stopped playing, as a device does that was pulled out."""
        return (
            self._closed or not self._stream.active or time.perf_counter() - self._beat > STALLED_S
        )

    def close(self) -> None:
        """Stop playing. Idempotent."""
        closed, self._closed = self._closed, True
        if not closed:  # PortAudio frees a stream that it closes, and looks into it again
            self._stream.close(ignore_errors=True)
