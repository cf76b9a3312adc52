"""What a microphone hears that is not meant for anybody: float32 [n] at 16 kHz, always the same."""

from __future__ import annotations

import numpy as np

from audio.frames import STT_RATE_HZ

_CHORDS = (
    (220.0, 261.6, 329.6),
    (174.6, 220.0, 261.6),
    (261.6, 329.6, 392.0),
    (196.0, 246.9, 293.7),
)
_BEAT_S = 0.5


def silence(seconds: float) -> np.ndarray:
    """A quiet room: noise at -70 dB."""
    return _noise(seconds, seed=1) * np.float32(3e-4)


def fan(seconds: float) -> np.ndarray:
    """Noise whose low frequencies are louder, at -34 dB, with the turning of the blades in it."""
    noise = _noise(seconds, seed=2)
    spectrum = np.fft.rfft(noise)
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 20))
    coloured = np.fft.irfft(spectrum, len(noise))
    blades = 1 + 0.2 * np.sin(2 * np.pi * 24 * _times(len(noise)))
    return _at_level(coloured * blades, 0.02)


def hum(seconds: float) -> np.ndarray:
    """Mains at 60 Hz with its harmonics, at -34 dB."""
    times = _times(int(seconds * STT_RATE_HZ))
    tones = sum(np.sin(2 * np.pi * 60 * n * times) / n for n in range(1, 9))
    return _at_level(np.asarray(tones), 0.02)


def music(seconds: float) -> np.ndarray:
    """Chords, a bass, a tune and a drum, at -26 dB."""
    beats = int(np.ceil(seconds / _BEAT_S))
    samples = int(_BEAT_S * STT_RATE_HZ)
    rng = np.random.default_rng(3)
    parts = []
    for beat in range(beats):
        chord = _CHORDS[beat // 4 % len(_CHORDS)]
        times = _times(samples)
        fade = np.exp(-3 * times)
        part = sum(_string(f, times) for f in chord) * fade
        part = part + 1.5 * _string(chord[0] / 2, times) * fade
        part = part + 1.5 * _string(2 * chord[int(rng.integers(3))], times) * fade
        drum = rng.standard_normal(samples) * np.exp(-60 * times) * (beat % 2 + 0.5)
        parts.append(part + drum)
    return _at_level(np.concatenate(parts)[: int(seconds * STT_RATE_HZ)], 0.05)


def cough() -> np.ndarray:
    """Two bursts of breath, 0.35 s."""
    noise = _noise(0.35, seed=4)
    times = _times(len(noise))
    bursts = np.exp(-((times - 0.06) ** 2) / 8e-4) + 0.7 * np.exp(-((times - 0.24) ** 2) / 1.2e-3)
    return (noise * bursts * 0.15).astype(np.float32)


def click() -> np.ndarray:
    """A key, 20 ms."""
    noise = _noise(0.02, seed=5)
    return (noise * np.exp(-400 * _times(len(noise))) * 0.4).astype(np.float32)


def acoustic_bounds(samples: np.ndarray, share: float = 0.02) -> tuple[int, int]:
    """First and one past the last sample of the 5 ms frames louder than `share` of the loudest."""
    frame = 80
    frames = samples[: len(samples) // frame * frame].reshape(-1, frame)
    levels = np.sqrt(np.mean(np.square(frames), axis=1))
    loud = np.flatnonzero(levels > share * levels.max())
    return int(loud[0]) * frame, (int(loud[-1]) + 1) * frame


def _string(hz: float, times: np.ndarray) -> np.ndarray:
    return np.asarray(sum(np.sin(2 * np.pi * hz * n * times) / n**1.5 for n in range(1, 7)))


def _noise(seconds: float, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.standard_normal(int(seconds * STT_RATE_HZ)).astype(np.float32)


def _times(samples: int) -> np.ndarray:
    return np.arange(samples) / STT_RATE_HZ


def _at_level(samples: np.ndarray, rms: float) -> np.ndarray:
    scale = rms / np.sqrt(np.mean(np.square(samples)))
    return np.clip(samples * scale, -1, 1).astype(np.float32)
