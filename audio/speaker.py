"""A loudspeaker of this machine: a callback that only copies, and what of it was heard."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from audio.devices import Device, Format
from audio.portaudio import fault, portaudio
from audio.ring import Ring

BLOCK_MS = 20
# What the system keeps ready to play. It is heard late by as much, and after an interruption too.
LATENCY_S = 0.08
_KEPT_S = 2.0  # that may wait to be played; whoever writes looks at `room`
_STALLED_S = 1.5


class Speaker:
    """Plays from when it is made until `close`, silence when it has nothing else.

    Frames are numbered as they are written. Times are `time.perf_counter`'s, of the moment a
    sound is there. Raises `UnpausedError` when it cannot be opened.
    """

    def __init__(self, device: Device, format: Format) -> None:
        self.device, self.rate_hz = device, format.rate_hz
        self.underflows = 0  # blocks that came too late for the system
        self.expecting = False  # whether more is about to be written: then running dry is a gap
        self.gaps = 0
        self._waiting = Ring(int(_KEPT_S * format.rate_hz), format.rate_hz)
        self._played = Ring(int(_KEPT_S * format.rate_hz), format.rate_hz)  # silence too
        self._flushed = 0
        self._sounding = False  # whether the last block ended in speech
        self._began = self._mark = (0, 0.0)  # a frame's number and the time it is heard at
        self._beat = time.perf_counter()
        sounddevice = portaudio()
        try:
            self._stream = sounddevice.OutputStream(
                device=device.index,
                samplerate=format.rate_hz,
                channels=format.channels,
                dtype="float32",
                blocksize=format.rate_hz * BLOCK_MS // 1000,
                latency=LATENCY_S,
                callback=self._copy,
            )
            self._stream.start()
        except sounddevice.PortAudioError as error:
            raise fault(error, "output", device.name) from error

    def _copy(self, out: np.ndarray, count: int, times: Any, status: Any) -> None:
        now = time.perf_counter()
        ahead = times.outputBufferDacTime - times.currentTime
        if not times.outputBufferDacTime:
            ahead = self._stream.latency
        self._waiting.skip_to(self._flushed)
        speech = self._waiting.read(count)
        out[: len(speech)] = speech
        out[len(speech) :] = 0
        number = self._waiting.taken
        if len(speech) and not self._sounding:
            self._began = (number - len(speech), now + ahead)
        if len(speech):
            self._mark = (number, now + ahead + len(speech) / self.rate_hz)
        self.gaps += self.expecting and self._sounding and len(speech) < count
        self._sounding = len(speech) == count
        self._played.write(out[:, :1], now + ahead)
        self.underflows += bool(status.output_underflow)
        self._beat = now

    @property
    def stalled(self) -> bool:
        """Whether it has stopped playing, as a device does that was pulled out."""
        return not self._stream.active or time.perf_counter() - self._beat > _STALLED_S

    @property
    def room(self) -> int:
        """Frames that `write` takes."""
        return self._waiting.room

    @property
    def written(self) -> int:
        """The number of the next frame to be written."""
        return self._waiting.written

    @property
    def began(self) -> tuple[int, float]:
        """The frame with which sound last followed silence, and when that is heard."""
        return self._began

    def write(self, samples: np.ndarray) -> None:
        """Play float32 [n], n at most `room`, after what is waiting."""
        self._waiting.write(samples[:, None])

    def heard(self) -> int:
        """The number below which all frames have been heard or dropped."""
        number, time_s = self._mark
        coming = max(0.0, time_s - time.perf_counter()) * self.rate_hz
        return max(0, number - round(coming))

    def flush(self) -> int:
        """Drop what waits. The number below which frames were, or within `LATENCY_S` are, heard."""
        self._flushed = self._waiting.written
        return self._mark[0]

    def played(self) -> tuple[np.ndarray, float]:
        """All sound and silence since the last call, float32 [n], and when its first is heard."""
        frames = self._played.read()
        return frames[:, 0], self._played.time_of(self._played.taken - len(frames))

    def close(self) -> None:
        """Stop playing. Idempotent."""
        self._stream.close(ignore_errors=True)
