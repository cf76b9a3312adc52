"""Is what the microphone hears the loudspeaker's own words? Told by the sound itself.

The echo of a loudspeaker is what was played, late, filtered and quieter: shifted right, the two are
alike sample by sample, which another voice never is, not even one that says the same. This only
guards against mistaking an echo for somebody; taking it out of the sound is an echo canceller's.
"""

from __future__ import annotations

import numpy as np

from audio.frames import STT_RATE_HZ, Resampler, from_pcm16

_MAX_S = 120  # of a reply that is remembered
# How far the echo may be from where it is expected: each pause of the player moves what was before.
_LATEST_S, _EARLIEST_S = 0.7, 1.2
_TOO_EARLY_S = 0.3  # before the reply was reported to sound: that was somebody else
_MIN_S = 0.08  # of a stretch; less proves nothing
_SURE_S = 0.2  # of sound: the less there is, the better it fits by chance
_LOUD = 0.07  # of the loudest frame, and the player may have been ducked: the rest is not compared
_FRAME = 160
_GAP_FRAMES = 8  # of quiet: a longer one ends a stretch, for the player may have paused in it
_EMPHASIS = 0.95  # evens out the spectrum, or all voiced sounds would resemble each other


class EchoGuard:
    """Knows what the latest reply has played, and when. Not thread-safe."""

    def __init__(self) -> None:
        self._generation = 0
        self._pieces: list[np.ndarray] = []  # float32 at 16 kHz
        self._samples = 0
        self._resampler = Resampler(STT_RATE_HZ, STT_RATE_HZ)
        # The microphone's sample at which the first was put out, as it is after the latest pause
        # of the player, and as it was before any.
        self._began: int | None = None
        self._sounded = 0

    def spoken(self, generation: int, pcm: np.ndarray, rate_hz: int) -> None:
        """`pcm`, int16 [n] at `rate_hz`, goes to the player after what came before."""
        if generation != self._generation:
            self._generation, self._pieces, self._samples = generation, [], 0
            self._resampler = Resampler(rate_hz, STT_RATE_HZ)
            self._began, self._sounded = None, 0
        if self._samples < _MAX_S * STT_RATE_HZ:
            self._pieces.append(self._resampler.push(from_pcm16(pcm)))
            self._samples += len(self._pieces[-1])

    def located(self, generation: int, seconds: float, received: int) -> None:
        """So many `seconds` of it were played when the microphone had `received` samples.

        Reports come late, never early, so the earliest beginning is the best known.
        """
        if generation == self._generation:
            began = received - int(seconds * STT_RATE_HZ)
            self._began = began if self._began is None else min(self._began, began)
            self._sounded = min(self._sounded or began, began)

    def interrupted(self) -> None:
        """The player paused: when it goes on, it is later than was known."""
        self._began = None

    def likeness(self, samples: np.ndarray, start_sample: int) -> float:
        """How much float32 [n] at 16 kHz, heard from `start_sample` of the microphone on, is like
        what was played then: 0 to 1.
        """
        if self._began is None or not self._pieces:
            return 0.0
        # What was said before the reply is none of it.
        early = max(0, self._sounded - int(_TOO_EARLY_S * STT_RATE_HZ) - start_sample)
        samples, at = samples[early:], start_sample + early - self._began
        played = _emphasised(np.concatenate(self._pieces))
        stretches = [(_emphasised(samples[first:end]), at + first)
                     for first, end in _loud_stretches(samples)]  # fmt: skip
        energies = [float(np.sum(np.square(heard))) for heard, _ in stretches]
        if not sum(energies):
            return 0.0
        # The player pauses in its own echo, so each stretch is compared by itself.
        alike = [_best_match(heard, _around(played, at, len(heard))) for heard, at in stretches]
        compared_s = sum(len(heard) for heard, _ in stretches) / STT_RATE_HZ
        return float(np.average(alike, weights=energies)) * min(1.0, (compared_s / _SURE_S) ** 0.5)


def _around(played: np.ndarray, at: int, length: int) -> np.ndarray:
    """Of what was `played`, where an echo of `length` that is expected `at` a sample can be."""
    earliest = max(0, at - int(_LATEST_S * STT_RATE_HZ))
    latest = max(0, at + length + int(_EARLIEST_S * STT_RATE_HZ))
    # What is heard may begin before the reply did, and end after what is known of it.
    return np.pad(played[earliest:latest], length // 2)


def _loud_stretches(samples: np.ndarray) -> list[tuple[int, int]]:
    """First sample and end of each stretch that is loud without a long gap, and long enough."""
    frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    levels = np.sqrt(np.mean(np.square(frames), axis=1)) if len(frames) else np.zeros(0)
    loud = np.flatnonzero(levels > _LOUD * levels.max(initial=0.0))
    if not len(loud):
        return []
    parts = np.split(loud, np.flatnonzero(np.diff(loud) > _GAP_FRAMES) + 1)
    stretches = [(int(part[0]) * _FRAME, (int(part[-1]) + 1) * _FRAME) for part in parts]
    return [(first, end) for first, end in stretches if end - first >= _MIN_S * STT_RATE_HZ]


def _emphasised(samples: np.ndarray) -> np.ndarray:
    return np.diff(samples, prepend=np.float32(0)) + (1 - _EMPHASIS) * samples


def _best_match(heard: np.ndarray, played: np.ndarray) -> float:
    """The highest normalised correlation of `heard` with any stretch of `played`."""
    if len(played) < len(heard):
        return 0.0
    size = 1 << (len(played) + len(heard)).bit_length()
    spectrum = np.fft.rfft(played, size) * np.conj(np.fft.rfft(heard, size))
    products = np.abs(np.fft.irfft(spectrum, size)[: len(played) - len(heard) + 1])
    energy = np.concatenate([[0.0], np.cumsum(np.square(played, dtype=np.float64))])
    energies = energy[len(heard) :] - energy[: len(energy) - len(heard)]
    own = float(np.sum(np.square(heard, dtype=np.float64)))
    usable = energies > 1e-3 * energies.max(initial=0.0)
    if own <= 0 or not usable.any():
        return 0.0
    return float((products[usable] / np.sqrt(own * energies[usable])).max())
