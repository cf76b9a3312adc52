"""Speech as the files that clients ask for."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
import soundfile

from audio.frames import Resampler, from_pcm16, to_pcm16

Format = Literal["mp3", "opus", "flac", "wav", "pcm"]
MEDIA_TYPES: dict[Format, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
PCM_RATE_HZ = 24000  # of OpenAI's bare samples, which carry no rate
_OPUS_RATE_HZ = 24000  # Opus knows 8, 12, 16, 24 and 48 kHz
_KINDS = {
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
    "flac": ("FLAC", "PCM_16"),
    "wav": ("WAV", "PCM_16"),
}


def encode(pcm: np.ndarray, rate_hz: int, as_: Format) -> bytes:
    """int16 [n] at `rate_hz` as a whole file."""
    if as_ == "pcm":
        return resampled(pcm, rate_hz, PCM_RATE_HZ).astype("<i2").tobytes()
    if as_ == "opus":
        pcm, rate_hz = resampled(pcm, rate_hz, _OPUS_RATE_HZ), _OPUS_RATE_HZ
    container, subtype = _KINDS[as_]
    file = io.BytesIO()
    soundfile.write(file, pcm, rate_hz, format=container, subtype=subtype)
    return file.getvalue()


def resampled(pcm: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """int16 [n] to int16 [m] at the other rate."""
    if from_hz == to_hz:
        return pcm
    return to_pcm16(Resampler(from_hz, to_hz).push(from_pcm16(pcm), last=True))
