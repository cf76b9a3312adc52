"""What of a turn's speech was played, and which words that were.

The player reports samples; nothing here looks at a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

_AUDIBLE = 160  # of full scale 32767: the synthesiser's own idea of silence


@dataclass(frozen=True, slots=True)
class _Segment:
    text: str
    start: int  # samples of the turn before this segment
    voiced: int  # samples of it up to the end of its last sound
    end: int


@dataclass(slots=True)
class Playback:
    """The speech of one turn. Not thread-safe: its owner's lock guards it."""

    rate_hz: int = 0  # 0 until the first segment
    played: int = 0  # samples
    total: int = 0  # samples
    ended: bool = False  # no further segment will come
    dropped: bool = False  # what was not played never will be
    _segments: list[_Segment] = field(default_factory=list)

    def add(self, pcm: np.ndarray, rate_hz: int, text: str) -> None:
        """Count one clause in: `pcm` int16 [n] at `rate_hz`, speaking `text`."""
        if self.rate_hz not in (0, rate_hz):
            raise ValueError(f"the rate changed within a turn: {self.rate_hz} to {rate_hz} Hz")
        self.rate_hz = rate_hz
        audible = np.flatnonzero((pcm > _AUDIBLE) | (pcm < -_AUDIBLE))
        voiced = int(audible[-1]) + 1 if len(audible) else len(pcm)
        end = self.total + len(pcm)
        self._segments.append(_Segment(text, self.total, voiced, end))
        self.total = end

    def report(self, samples: int) -> None:
        """`samples` were played since the turn began; a report can neither go back nor ahead."""
        self.played = max(self.played, min(samples, self.total))

    def drop(self) -> None:
        """Nothing more will be played."""
        self.ended = self.dropped = True

    @property
    def playing(self) -> bool:
        """Whether something is still to be played."""
        return self.played < self.total and not self.dropped

    @property
    def finished(self) -> bool:
        """Whether everything there will be was played."""
        return self.ended and not self.playing

    def heard(self) -> str:
        """The words that were played whole."""
        heard: list[str] = []
        for segment in self._segments:
            if segment.start >= self.played:
                break
            heard += _whole_words(segment, self.played - segment.start)
        return " ".join(heard)

    def recent(self, seconds: float) -> str:
        """The text of the segments of which anything was played in the last `seconds`."""
        since = self.played - int(seconds * self.rate_hz)
        return " ".join(
            segment.text
            for segment in self._segments
            if segment.start < self.played and segment.end > since
        )


def _whole_words(segment: _Segment, played: int) -> list[str]:
    """Letters take about equally long, so where a word ends follows from where it stands."""
    words = segment.text.split()
    if played >= segment.voiced:
        return words
    length = len(" ".join(words))
    whole, end = 0, -1
    for word in words:
        end += 1 + len(word)
        if end * segment.voiced > played * length:
            break
        whole += 1
    return words[:whole]
