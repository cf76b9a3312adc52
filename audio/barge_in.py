"""Is somebody interrupting? A pure state machine; the samples fed are its only clock.

A reply that is spoken over gets quieter at the first sign of a voice and silent when the voice
goes on. Whether it was an interruption is decided afterwards, by how long it lasts or by what was
said, and until then the reply can go on from where it stopped. So a "Stop" is obeyed at once and
an "mm-hm" costs a short pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["duck", "unduck", "pause", "interrupt"]


@dataclass(frozen=True)
class BargeInConfig:
    """Milliseconds of voice while the assistant speaks."""

    threshold: float = 0.5  # probability of speech
    duck_ms: int = 64
    pause_ms: int = 128  # "Stop" is silent 270 ms after its first sound, other words after 170
    interrupt_ms: int = 800  # nobody says "mm-hm" for so long
    gap_ms: int = 200  # a longer gap begins the count anew


class BargeIn:
    """Fed every block while a reply is under way; `reset` when it is not."""

    def __init__(self, config: BargeInConfig | None = None) -> None:
        self.config = config or BargeInConfig()
        self.reset()

    def reset(self) -> None:
        """Nobody is speaking over a reply."""
        self._voiced_ms = self._gap_ms = 0.0
        self._reached = 0

    @property
    def quiet_ms(self) -> float:
        """How long there has been no voice."""
        return self._gap_ms

    @property
    def has_paused(self) -> bool:
        """Whether "pause" was said since the last `reset`."""
        return self._reached >= 2

    def push(self, probability: float, ms: float) -> Action | None:
        """Take `ms` of sound; what to do about it, each at most once."""
        if probability < self.config.threshold:
            return self._quiet(ms)
        if self._gap_ms > self.config.gap_ms:
            self._voiced_ms = 0.0
        self._voiced_ms += ms
        self._gap_ms = 0.0
        return self._loud()

    def _quiet(self, ms: float) -> Action | None:
        self._gap_ms += ms
        if self._gap_ms > self.config.gap_ms and self._reached == 1:
            self.reset()
            return "unduck"
        return None

    def _loud(self) -> Action | None:
        config = self.config
        steps: tuple[tuple[Action, int], ...] = (
            ("duck", config.duck_ms),
            ("pause", config.pause_ms),
            ("interrupt", config.interrupt_ms),
        )
        if self._reached < len(steps) and self._voiced_ms >= steps[self._reached][1]:
            self._reached += 1
            return steps[self._reached - 1][0]
        return None
