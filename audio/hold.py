"""Push-to-talk: what was said between press and release."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audio.acoustic_end import acoustic_end
from audio.frames import STT_RATE_HZ

VOICED = 0.5  # probability of speech
MIN_VOICED_MS = 200  # less is a click or a cough; the transcriber's own gates are stricter
_MARGIN = 2 * STT_RATE_HZ // 5  # 0.4 s kept around the speech
_MAX_SAMPLES = 120 * STT_RATE_HZ


@dataclass(frozen=True, eq=False)
class Held:
    """`samples`: float32 [n] of the speech with a margin. Sample numbers count from the press."""

    samples: np.ndarray
    start_sample: int
    end_of_speech_sample: int


class HoldToTalk:
    """Collects blocks while a button is held; bounded, for a key may be stuck."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []
        self._samples = 0
        self._first_voiced: int | None = None  # sample
        self._last_voiced = 0  # one past it
        self._voiced = 0  # samples

    def push(self, probability: float, block: np.ndarray) -> None:
        """Take the next float32 [n]; past two minutes what was said so far is what counts."""
        if self._samples >= _MAX_SAMPLES:
            return
        if probability >= VOICED:
            if self._first_voiced is None:
                self._first_voiced = self._samples
            self._last_voiced = self._samples + len(block)
            self._voiced += len(block)
        self._blocks.append(block)
        self._samples += len(block)

    def release(self) -> Held | None:
        """What was said, or None when that was too little to be speech."""
        if self._first_voiced is None or self._voiced * 1000 < MIN_VOICED_MS * STT_RATE_HZ:
            return None
        held = np.concatenate(self._blocks)
        start = max(0, self._first_voiced - _MARGIN)
        end = acoustic_end(held, self._last_voiced)
        return Held(held[start : end + _MARGIN], start, end)
