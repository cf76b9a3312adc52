"""Is somebody interrupting? A pure state machine; the samples fed are its only clock.

A reply that is spoken over gets quieter at the first sign of a voice and silent when the voice
goes on. Whether it was an interruption is decided afterwards, by what was said, and until then the
reply can go on from where it stopped. So a "Stop" is obeyed at once and an "mm-hm" costs a short
pause. Every false alarm makes the rest of the reply harder to stop: where the loudspeaker itself is
what is heard, it must not stop at each of its own words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["duck", "unduck", "pause", "probe"]


@dataclass(frozen=True)
class BargeInConfig:
    """Milliseconds of voice while the assistant speaks."""

    threshold: float = 0.5  # probability of speech
    duck_ms: int = 64
    pause_ms: int = 128  # "Stop" is silent 270 ms after its first sound, other words after 170
    probe_ms: int = 640  # nobody says "mm-hm" for so long: what is it?
    gap_ms: int = 200  # a longer gap begins the count anew
    most_patient_ms: int = 1024  # that a pause may come to need after false alarms


class BargeIn:
    """One reply's. Fed every block while it is under way."""

    def __init__(self, config: BargeInConfig | None = None) -> None:
        self.config = config or BargeInConfig()
        self._pause_ms = self.config.pause_ms
        self._forget()

    def _forget(self) -> None:
        self._voiced_ms = self._gap_ms = 0.0
        self._done: set[Action] = set()

    def false_alarm(self) -> None:
        """The reply was paused and goes on: it was none."""
        self._pause_ms = min(2 * self._pause_ms, self.config.most_patient_ms)
        self._forget()

    @property
    def has_paused(self) -> bool:
        """Whether "pause" was said, and no false alarm since."""
        return "pause" in self._done

    @property
    def quiet(self) -> bool:
        """Whether the voice, if there was one, has been gone for a while."""
        return self._gap_ms > self.config.gap_ms

    def push(self, probability: float, ms: float) -> Action | None:
        """Take `ms` of sound; what to do about it, each at most once for one voice."""
        if probability < self.config.threshold:
            return self._silent(ms)
        if self.quiet:
            self._voiced_ms = 0.0
            self._done.discard("probe")
        self._voiced_ms += ms
        self._gap_ms = 0.0
        return self._voiced()

    def _silent(self, ms: float) -> Action | None:
        self._gap_ms += ms
        if self.quiet and self._done and not self.has_paused:
            self._forget()
            return "unduck"
        return None

    def _voiced(self) -> Action | None:
        steps: tuple[tuple[Action, int], ...] = (
            ("duck", self.config.duck_ms),
            ("pause", self._pause_ms),
            ("probe", self.config.probe_ms),
        )
        for action, after_ms in steps:
            if self._voiced_ms >= after_ms and action not in self._done:
                self._done.add(action)
                return action
        return None
