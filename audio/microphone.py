"""A microphone of this machine: a callback that only copies, and what it copied."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from audio.devices import BLOCK_MS, Device, Format, faults_told, open_stream
from audio.portaudio import hurry_thread
from audio.ring import Ring

# What the system may keep while the callback waits for its turn on a busy machine. Nothing is
# later for it: blocks come when they are full. Longer, and some systems hand over several at once.
LATENCY_S = 0.12
_KEPT_S = 4  # in the ring, while a turn begins
# Without a block for so long a device has gone. PulseAudio takes up to 1.9 s to begin, and to begin
# again after it was served too late.
STALLED_S = 3.0
STARTING_S = 2.0  # more, before the first


class Microphone:
    """Records from when it is made until `close`. Raises `UnpausedError` when it cannot.

    `missed` counts frames that were recorded and lost on the way: the callback came too late, or
    nobody read in time. Times are `time.perf_counter`'s, of the moment the sound was there.
    """

    def __init__(self, device: Device, format: Format) -> None:
        self.device, self.rate_hz = device, format.rate_hz
        self.blocks = 0
        self._overflows = 0  # blocks before which the system had to drop something
        self._ring = Ring(_KEPT_S * format.rate_hz, format.rate_hz, format.channels)
        self._closed = False
        self._beat = time.perf_counter() + STARTING_S
        with faults_told("input", device):
            self._stream = open_stream("input", device, format, LATENCY_S, self._copy)
            self._stream.start()  # from here on the callback runs

    def _copy(self, frames: np.ndarray, count: int, times: Any, status: Any) -> None:
        now = time.perf_counter()
        if not self.blocks:
            hurry_thread()
        # Some systems do not know when the sound was there; then it is as old as it is long.
        age = times.currentTime - times.inputBufferAdcTime
        if not times.inputBufferAdcTime:
            age = count / self.rate_hz
        self._ring.write(frames, now - age)
        self.blocks += 1
        self._overflows += bool(status.input_overflow)
        self._beat = now

    @property
    def missed(self) -> int:
        """Frames lost between the callback and `read`, and blocks the system had to drop."""
        return self._ring.lost + self._overflows * (self.rate_hz * BLOCK_MS // 1000)

    @property
    def stalled(self) -> bool:
        """Whether it has stopped delivering, as a device does that was pulled out."""
        return (
            self._closed or not self._stream.active or time.perf_counter() - self._beat > STALLED_S
        )

    def read(self) -> tuple[np.ndarray, float]:
        """What was recorded since the last call, mono float32 [n], and the time of its first."""
        frames = self._ring.read()
        samples = frames.mean(axis=1) if frames.shape[1] > 1 else frames[:, 0]
        return samples, self._ring.time_of(self._ring.taken - len(frames))

    def close(self) -> None:
        """Stop recording. Idempotent."""
        closed, self._closed = self._closed, True
        if not closed:  # PortAudio frees a stream that it closes, and looks into it again
            self._stream.close(ignore_errors=True)
