"""When did the speaker begin, and when did they finish? A pure state machine.

It is fed blocks with their speech probabilities. The samples received are its only clock, so a
script of probabilities tests it and a slow machine changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from audio.acoustic_end import acoustic_end
from audio.frames import STT_RATE_HZ

_PER_MS = STT_RATE_HZ // 1000
_BLOCK = 512  # samples that `listen` feeds at a time


@dataclass(frozen=True)
class EndpointingConfig:
    """Thresholds are probabilities. Speech starts at one and lasts until below the other, so a
    value between them does not make it flicker."""

    start_threshold: float = 0.5
    stop_threshold: float = 0.35
    pre_roll_ms: int = 400  # kept from before speech was noticed: soft first consonants
    post_roll_ms: int = 200  # kept after its end, for the same reason
    min_speech_ms: int = 200  # voiced; less is a cough or a click, the shortest "Stop" has 256
    pause_ms: int = 96  # three blocks: enough to begin work that may be thrown away
    complete_silence_ms: int = 192  # six blocks: when what was said sounds finished
    stop_silence_ms: int = 500  # when nobody has judged it
    incomplete_silence_ms: int = 1000  # when it sounds as if more were to come
    max_utterance_s: float = 60.0  # bounds the buffer (4 MB); a longer monologue is cut here


@dataclass(frozen=True)
class SpeechStarted:
    """There was enough speech to be sure of it; `start_sample` is where it began."""

    start_sample: int


@dataclass(frozen=True, eq=False)
class SpeechPaused:
    """A silence of `pause_ms`, which may be the end of the utterance or not.

    `number` names the pause to `Endpointer.judge`; the rest is as in `SpeechEnded`. Either
    `SpeechResumed` or `SpeechEnded` with the same number follows.
    """

    number: int
    samples: np.ndarray
    start_sample: int
    end_of_speech_sample: int
    silence_ms: float


@dataclass(frozen=True)
class SpeechResumed:
    """The pause was one within the utterance."""

    number: int


@dataclass(frozen=True, eq=False)
class SpeechEnded:
    """One utterance. Sample numbers count from the first block that was ever pushed.

    `samples`: float32 [n] at 16 kHz with pre-roll and post-roll, the first being number
    `start_sample`. `end_of_speech_sample`: the acoustic end, one past the last audible sample.
    `silence_ms`: from there until this was known, which is the wait that endpointing costs.
    `pause` is the number of the pause that ended it, None where the longest utterance was cut.
    """

    samples: np.ndarray
    start_sample: int
    end_of_speech_sample: int
    silence_ms: float
    pause: int | None = None


Event = SpeechStarted | SpeechPaused | SpeechResumed | SpeechEnded


class Endpointer:
    """Turns one microphone's blocks into utterances. Memory is bounded by `max_utterance_s`.

    How long a silence ends an utterance depends on what `judge` was told about the pause.
    """

    def __init__(self, config: EndpointingConfig | None = None) -> None:
        self.config = config or EndpointingConfig()
        self._received = 0  # samples
        self._before: deque[np.ndarray] = deque()  # the pre-roll
        self._blocks: list[np.ndarray] = []  # of what may be an utterance, pre-roll included
        self._first_sample = self._speech_start = self._last_voiced = 0
        self._voiced_samples = 0
        self._was_voiced = self._announced = False
        self._pauses = 0  # numbered since the start
        self._paused = False  # the last of them is going on
        self._complete: bool | None = None  # the judgement on it

    @property
    def active(self) -> bool:
        """Whether something that may be speech is being listened to."""
        return bool(self._blocks)

    @property
    def announced(self) -> bool:
        """Whether it is certainly speech: `SpeechStarted` has come and no end yet."""
        return self._announced

    def so_far(self) -> tuple[np.ndarray, int]:
        """The utterance under way: float32 [n] with its pre-roll, and the number of its first
        sample."""
        return np.concatenate([*self._blocks, np.zeros(0, np.float32)]), self._first_sample

    @property
    def received(self) -> int:
        """Samples pushed so far."""
        return self._received

    def push(self, probability: float, block: np.ndarray) -> list[Event]:
        """Take the next `block` (float32 [n], any n) and what it made known."""
        self._received += len(block)
        voiced = probability >= (
            self.config.stop_threshold if self._was_voiced else self.config.start_threshold
        )
        self._was_voiced = voiced
        if not self._blocks and not voiced:
            self._keep_before(block)
            return []
        if not self._blocks:
            self._begin(len(block))
        self._blocks.append(block)
        if voiced:
            self._voiced_samples += len(block)
            self._last_voiced = self._received
        return [*self._started(), *self._pause_events(voiced), *self._ended()]

    def judge(self, pause: int, complete: bool) -> list[Event]:
        """Say whether what was said before pause number `pause` is complete.

        A pause that is over is beyond judgement. The utterance may have ended by this.
        """
        if not self._paused or pause != self._pauses:
            return []
        self._complete = complete
        return self._ended()

    def _begin(self, samples: int) -> None:
        self._blocks = list(self._before)
        self._before.clear()
        self._speech_start = self._received - samples
        self._first_sample = self._speech_start - sum(map(len, self._blocks))

    def _started(self) -> list[SpeechStarted]:
        if self._announced or self._voiced_samples < self.config.min_speech_ms * _PER_MS:
            return []
        self._announced = True
        return [SpeechStarted(self._speech_start)]

    def _pause_events(self, voiced: bool) -> list[Event]:
        if self._paused and voiced:
            self._paused = False
            return [SpeechResumed(self._pauses)]
        silence = self._received - self._last_voiced
        if self._paused or not self._announced or silence < self.config.pause_ms * _PER_MS:
            return []
        self._paused, self._complete = True, None
        self._pauses += 1
        return [SpeechPaused(self._pauses, *self._utterance(np.concatenate(self._blocks)))]

    def _ended(self) -> list[Event]:
        silence = self._received - self._last_voiced
        too_long = self._received - self._first_sample >= self.config.max_utterance_s * STT_RATE_HZ
        if silence < self._patience_ms() * _PER_MS and not too_long:
            return []
        heard = np.concatenate(self._blocks)
        pause = self._pauses if self._paused else None
        events: list[Event] = []
        keep = self.config.pre_roll_ms * _PER_MS
        if self._announced:
            events = [SpeechEnded(*self._utterance(heard), pause)]
            keep = min(keep, silence)  # or the last word would be heard again
        self._forget()
        self._keep_before(heard[len(heard) - keep :])
        return events

    def _patience_ms(self) -> int:
        if self._complete is None:
            return self.config.stop_silence_ms
        if self._complete:
            return self.config.complete_silence_ms
        return self.config.incomplete_silence_ms

    def _utterance(self, heard: np.ndarray) -> tuple[np.ndarray, int, int, float]:
        """(samples, start_sample, end_of_speech_sample, silence_ms) of what was heard so far."""
        first = self._first_sample
        end = first + acoustic_end(heard, self._last_voiced - first)
        keep = end - first + self.config.post_roll_ms * _PER_MS
        return heard[:keep], first, end, (self._received - end) / _PER_MS

    def _keep_before(self, block: np.ndarray) -> None:
        if not len(block):
            return
        self._before.append(block)
        kept = sum(map(len, self._before))
        while kept - len(self._before[0]) >= self.config.pre_roll_ms * _PER_MS:
            kept -= len(self._before.popleft())

    def _forget(self) -> None:
        self._blocks = []
        self._voiced_samples = 0
        self._was_voiced = self._announced = self._paused = False
        self._complete = None


def speech_end(
    samples: np.ndarray,
    probability: Callable[[np.ndarray], float],
    config: EndpointingConfig | None = None,
) -> int | None:
    """The sample at which the last utterance of a recording (float32 [n] at 16 kHz) was over.

    None when there is none. A recording that ends while someone speaks goes on in silence.
    `probability` is a detector's, as `StreamingVad`'s.
    """
    endpointer = Endpointer(config)
    silence = np.zeros(_BLOCK, np.float32)
    ends: list[int] = []

    def push(block: np.ndarray) -> None:
        events = endpointer.push(probability(block), block)
        ends.extend(
            event.end_of_speech_sample for event in events if isinstance(event, SpeechEnded)
        )

    for at in range(0, len(samples), _BLOCK):
        block = samples[at : at + _BLOCK]
        push(np.pad(block, (0, _BLOCK - len(block))))
    patience = 4 * endpointer.config.stop_silence_ms * _PER_MS // _BLOCK
    for _ in range(patience):  # a detector that never falls silent must not hold us here
        if not endpointer.active:
            break
        push(silence)
    return ends[-1] if ends else None
