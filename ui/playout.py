"""A turn's speech on its way to the browser, paced by what was played.

The client reports how many samples it has played; the server sends no further ahead of that than
`LEAD_MS`. So the client's buffer is bounded and full whatever the speed of synthesis.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ui.protocol import FRAME_MS

LEAD_MS = 600  # covers the client's report every 50 ms, its prebuffer and a slow network
MAX_HELD_S = 600  # of speech in one turn; far past any reply, it bounds memory


@dataclass(slots=True)
class Playout:
    """The speech of one turn. Not thread-safe: its session's lock guards it."""

    turn: int
    rate_hz: int = 0  # 0 until the first clause
    sent: int = 0  # samples
    played: int = 0  # samples
    total: int = 0  # samples
    ended: bool = False  # no further clause will come
    paused: bool = False  # somebody may be interrupting
    stalled: bool = False  # the client plays no more
    _pending: list[np.ndarray] = field(default_factory=list)  # int16 [n] each
    _dropped: bool = False

    def add(self, pcm: np.ndarray, rate_hz: int) -> None:
        """Queue one clause: `pcm` int16 [n] at `rate_hz`."""
        if self.rate_hz not in (0, rate_hz):
            raise ValueError(f"the rate changed within a turn: {self.rate_hz} to {rate_hz} Hz")
        self.rate_hz = rate_hz
        pcm = pcm[: max(0, MAX_HELD_S * rate_hz - self.total)]
        frame = rate_hz * FRAME_MS // 1000
        self._pending.extend(pcm[at : at + frame] for at in range(0, len(pcm), frame))
        self.total += len(pcm)

    def take(self) -> list[bytes]:
        """The frames (little-endian int16) that may be sent now."""
        ahead = 0 if self.paused else LEAD_MS * self.rate_hz // 1000
        count = 0
        frames = []
        while count < len(self._pending) and self.sent - self.played < ahead:
            frames.append(self._pending[count].astype("<i2").tobytes())
            self.sent += len(self._pending[count])
            count += 1
        del self._pending[:count]
        return frames

    def report(self, samples: int) -> None:
        """The client has played `samples` samples; a report can neither go back nor ahead."""
        self.played = max(self.played, min(samples, self.sent))

    def drop(self) -> None:
        """Send nothing more; what is on its way will not be played."""
        self._pending.clear()
        self.ended = self._dropped = True
        self.total = self.sent

    def stall(self) -> None:
        """The client has stopped playing for good."""
        self.drop()
        self.stalled = True

    @property
    def playing(self) -> bool:
        """Whether something is still to be played."""
        return self.played < self.total and not self._dropped

    @property
    def waiting(self) -> int:
        """Frames that could not be sent yet."""
        return len(self._pending)

    @property
    def all_sent(self) -> bool:
        return self.ended and not self._pending
