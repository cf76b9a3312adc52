"""What the microphone hears of our own loudspeaker, and what is done about it.

Each kind takes what was recorded (`near`) and what the loudspeaker plays about then (`far`), both
float32 at 16 kHz, and gives back what is to be listened to: as many samples, a little later.
`delay_ms` is by how much the far samples that come along are heard after the near ones were
recorded; negative when before.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import numpy as np

from audio.frames import STT_RATE_HZ, from_pcm16, to_pcm16

_FRAME = STT_RATE_HZ // 100  # 10 ms: all that WebRTC's processing takes
_MAX_FAR_FRAMES = 50  # that wait for their near frames: more is a stream that has run ahead
_MIN_LEAD_MS = 10
_MAX_DELAY_MS = 500  # WebRTC refuses more, and less than 0
_AUDIBLE = 1e-4  # of full scale
_TAIL_MS = 250  # a room goes on sounding, and devices know their latency only roughly


class Echo(Protocol):
    """How own sound is kept from being taken for speech."""

    full_duplex: bool  # whether the assistant can be interrupted by voice
    words: str  # for the person

    def process(self, near: np.ndarray, far: np.ndarray, delay_ms: float) -> np.ndarray: ...


class Headset:
    """Nothing to do: the microphone does not hear the loudspeaker."""

    full_duplex = True
    words = "headset: no echo expected"

    def process(self, near: np.ndarray, far: np.ndarray, delay_ms: float) -> np.ndarray:
        return near


class HalfDuplex:
    """Deaf while the loudspeaker is audible, and a little longer. Its clock is the samples."""

    full_duplex = False
    words = "half-duplex: deaf while it speaks (livekit would cancel the echo)"

    def __init__(self) -> None:
        self._deaf = 0  # near samples

    def process(self, near: np.ndarray, far: np.ndarray, delay_ms: float) -> np.ndarray:
        loud = np.flatnonzero(np.abs(far) > _AUDIBLE)
        if len(loud):
            until_ms = max(0.0, delay_ms) + _TAIL_MS
            self._deaf = max(self._deaf, int(loud[-1]) + 1 + round(until_ms * STT_RATE_HZ / 1000))
        heard = near.copy()
        heard[: self._deaf] = 0
        self._deaf = max(0, self._deaf - len(near))
        return heard


class WebRtc:
    """WebRTC's echo canceller, from `livekit`; ImportError without that.

    Frames of 10 ms go in pairs, the far one first, so that its place relative to the near one
    stays the same and only the measured delay says where that is.
    """

    full_duplex = True
    words = "echo cancelled by WebRTC"

    def __init__(self) -> None:
        from livekit.rtc import AudioFrame
        from livekit.rtc.apm import AudioProcessingModule

        self._frame = AudioFrame
        # Without its noise suppressor: the speech detector needs none, and it cost words in what
        # Whisper then wrote (of three noisy questions one lost its sense).
        self._module = AudioProcessingModule(echo_cancellation=True, high_pass_filter=True)
        self._near: np.ndarray = np.zeros(0, np.int16)
        self._rest: np.ndarray = np.zeros(0, np.int16)  # of far, less than a frame
        self._far: deque[np.ndarray] = deque()

    def process(self, near: np.ndarray, far: np.ndarray, delay_ms: float) -> np.ndarray:
        # What waits here is heard that much earlier than what comes now.
        lead_ms = delay_ms - 10 * len(self._far)
        self._take_far(far)
        self._near = np.concatenate([self._near, to_pcm16(near)])
        parts = [np.zeros(0, np.int16)]
        while len(self._near) >= _FRAME:
            # An echo whose sound has not gone in before it cannot be taken out.
            while self._far and lead_ms < _MIN_LEAD_MS:
                self._reverse()
                lead_ms += 10
            self._module.set_stream_delay_ms(round(min(max(lead_ms, 0), _MAX_DELAY_MS)))
            parts.append(self._pair())
        return from_pcm16(np.concatenate(parts))

    def _take_far(self, far: np.ndarray) -> None:
        samples = np.concatenate([self._rest, to_pcm16(far)])
        whole = len(samples) // _FRAME * _FRAME
        self._far.extend(samples[:whole].reshape(-1, _FRAME))
        self._rest = samples[whole:]
        while len(self._far) > _MAX_FAR_FRAMES:
            self._reverse()

    def _pair(self) -> np.ndarray:
        if self._far:
            self._reverse()
        frame = self._made(self._near[:_FRAME])
        self._near = self._near[_FRAME:]
        self._module.process_stream(frame)
        return np.frombuffer(frame.data, np.int16)

    def _reverse(self) -> None:
        self._module.process_reverse_stream(self._made(self._far.popleft()))

    def _made(self, samples: np.ndarray) -> Any:
        return self._frame(bytearray(samples.tobytes()), STT_RATE_HZ, 1, _FRAME)


def choose_echo(headset: bool) -> Echo:
    """What this machine can do: nothing for a headset, else WebRTC's, else half-duplex."""
    if headset:
        return Headset()
    try:
        return WebRtc()
    except (ImportError, OSError):  # not installed, or not for this system
        return HalfDuplex()
