"""Samples in and out: audio files, PCM16, and rates.

Inside, speech is float32, mono, in [-1, 1]; at the edges (sockets, files, loudspeakers) it is
little-endian PCM16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
import soxr

from audio.riff import missing_bytes
from engine.errors import UnpausedError
from engine.files import whole_file

STT_RATE_HZ = 16000  # what Whisper and Silero were trained at
MAX_FILE_S = 600
_BLOCK_S = 1  # decoded at a time, so that memory does not depend on rate or channels
_RATES_HZ = range(1000, 768_001)  # outside of them a header is corrupt, not unusual
_FULL_SCALE = 32767


class Resampler:
    """Streaming rate conversion of mono float32."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        same = from_hz == to_hz
        self._stream = None if same else soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")

    def push(self, samples: np.ndarray, last: bool = False) -> np.ndarray:
        """Convert the next float32 [n]; returns float32 [m] that is ready, all with `last`."""
        if self._stream is None:
            return samples
        return self._stream.resample_chunk(samples, last=last)

    def flush(self) -> np.ndarray:
        """The rest, float32 [m]. Nothing may be pushed afterwards."""
        return self.push(np.zeros(0, np.float32), last=True)


def to_pcm16(samples: np.ndarray) -> np.ndarray:
    """float32 [n] in [-1, 1] to int16 [n]; louder samples are clipped."""
    return np.rint(np.clip(samples, -1.0, 1.0) * _FULL_SCALE).astype(np.int16)


def from_pcm16(pcm16: np.ndarray | bytes) -> np.ndarray:
    """int16 [n], or its little-endian bytes, to float32 [n] in [-1, 1].

    Raises `UnpausedError` for an odd number of bytes.
    """
    if isinstance(pcm16, bytes):
        if len(pcm16) % 2:
            raise UnpausedError(f"PCM16 comes in pairs of bytes; got {len(pcm16)} of them")
        pcm16 = np.frombuffer(pcm16, "<i2")
    return np.maximum(pcm16.astype(np.float32) / _FULL_SCALE, -1.0)


def read_audio(path: Path | str) -> np.ndarray:
    """The whole file as float32 [n], mono, `STT_RATE_HZ`, in [-1, 1].

    Any rate, width and channel count of any format that libsndfile knows. A float file that goes
    past full scale is scaled down as a whole. Raises `UnpausedError` when there is no such file,
    or it is empty, not audio, incomplete, not numbers, or longer than `MAX_FILE_S`; the length
    is known from the header, before anything is decoded.
    """
    path = Path(path)
    _check_file(path)
    try:
        with soundfile.SoundFile(path) as file:
            _check_header(path, file)
            samples = _decode(path, file)
    except (soundfile.SoundFileError, OSError) as error:
        raise UnpausedError(
            f"cannot read {path} as audio: {_reason(error)}; WAV, FLAC, OGG and MP3 work"
        ) from error
    peak = float(np.abs(samples).max(initial=0.0))
    if not np.isfinite(peak):
        raise UnpausedError(
            f"{path} holds samples that are not numbers (NaN or infinity): export it again"
        )
    return samples / peak if peak > 1 else samples


def write_wav(path: Path, pcm16: np.ndarray, rate_hz: int) -> None:
    """Write int16 [n] as a mono WAV; under `path` there is all of it or what was there before."""
    with whole_file(path) as file:
        try:
            soundfile.write(file, pcm16, rate_hz, format="WAV", subtype="PCM_16")
        except soundfile.SoundFileError as error:
            raise UnpausedError(f"cannot write {path}: {_reason(error)}") from error


def _check_file(path: Path) -> None:
    if not path.exists():
        raise UnpausedError(f"no such file: {path}")
    if path.is_dir():
        raise UnpausedError(f"{path} is a folder: name an audio file")
    if not path.is_file():  # a pipe's reader may wait for ever, and headers are read twice
        raise UnpausedError(f"{path} is no regular file: save the recording to one and name that")
    try:
        if path.stat().st_size == 0:
            raise UnpausedError(f"{path} is empty (0 bytes)")
        missing = missing_bytes(path)
    except OSError as error:
        raise UnpausedError(f"cannot read {path}: {_reason(error)}") from error
    if missing:
        raise _truncated(path, f"{missing:,} bytes that its header promises are missing")


def _check_header(path: Path, file: soundfile.SoundFile) -> None:
    if file.samplerate not in _RATES_HZ:
        raise UnpausedError(f"{path} claims {file.samplerate} samples a second: it is corrupt")
    if file.frames <= 0:
        raise UnpausedError(f"{path} holds no audio: its header says 0 samples")
    duration_s = file.frames / file.samplerate
    if duration_s > MAX_FILE_S:
        raise UnpausedError(
            f"{path} is {duration_s / 60:.0f} minutes long and a turn may have "
            f"{MAX_FILE_S // 60}: cut out the part that is meant"
        )


def _decode(path: Path, file: soundfile.SoundFile) -> np.ndarray:
    resampler = Resampler(file.samplerate, STT_RATE_HZ)
    parts, decoded = [], 0
    # Not `file.blocks`: it fills a block that the decoder cut short with what was in memory.
    while len(block := file.read(file.samplerate * _BLOCK_S, "float32", always_2d=True)):
        decoded += len(block)
        parts.append(resampler.push(block.mean(axis=1)))
    if decoded < file.frames:  # compressed formats show it only here
        raise _truncated(path, f"it ends after {decoded:,} of {file.frames:,} samples")
    return np.concatenate([*parts, resampler.flush()])


def _truncated(path: Path, detail: str) -> UnpausedError:
    return UnpausedError(f"{path} is truncated: {detail}; copy or record it again")


def _reason(error: Exception) -> str:
    """The operating system's or libsndfile's own words, on one line.

    Of a damaged MP3 libsndfile says that there is no such file; whether there is was asked before.
    """
    text = error.strerror if isinstance(error, OSError) else getattr(error, "error_string", None)
    words = " ".join(str(text or error).split()).rstrip(".")
    return "its data is damaged" if words.startswith("File does not exist") else words
