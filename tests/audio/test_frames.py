from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audio.frames import (
    MAX_FILE_S,
    STT_RATE_HZ,
    Resampler,
    from_pcm16,
    read_audio,
    to_pcm16,
    write_wav,
)
from engine.errors import UnpausedError


def tone(rate_hz: int, seconds: float = 1.0, hz: float = 440.0) -> np.ndarray:
    return (0.4 * np.sin(2 * np.pi * hz * np.arange(int(rate_hz * seconds)) / rate_hz)).astype("f4")


def write(path: Path, samples: np.ndarray, rate_hz: int, subtype: str = "PCM_16") -> Path:
    soundfile.write(path, samples, rate_hz, subtype=subtype)
    return path


def wav_with_data_size(path: Path, size: int) -> Path:
    content = bytearray(write(path, tone(STT_RATE_HZ), STT_RATE_HZ).read_bytes())
    at = content.index(b"data") + 4
    content[at : at + 4] = struct.pack("<I", size)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("rate_hz", [8000, 11025, 16000, 22050, 44100, 48000, 96000])
def test_any_rate_keeps_length_pitch_and_level(tmp_path: Path, rate_hz: int) -> None:
    samples = read_audio(write(tmp_path / "a.wav", tone(rate_hz), rate_hz))
    assert samples.dtype == np.float32
    assert abs(len(samples) - STT_RATE_HZ) <= 2
    spectrum = np.abs(np.fft.rfft(samples))
    assert abs(int(spectrum.argmax()) - 440) <= 1
    assert np.abs(samples[1000:-1000]).max() == pytest.approx(0.4, rel=0.02)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_any_width(tmp_path: Path, subtype: str) -> None:
    samples = read_audio(write(tmp_path / "a.wav", tone(STT_RATE_HZ), STT_RATE_HZ, subtype))
    np.testing.assert_allclose(samples, tone(STT_RATE_HZ), atol=0.01)


@pytest.mark.parametrize("channels", [2, 6])
def test_channels_are_averaged(tmp_path: Path, channels: int) -> None:
    frames = np.zeros((48000, channels), np.float32)
    frames[:, 0] = tone(48000)
    samples = read_audio(write(tmp_path / "a.wav", frames, 48000))
    assert np.abs(samples[1000:-1000]).max() == pytest.approx(0.4 / channels, rel=0.05)


@pytest.mark.parametrize("suffix", ["flac", "ogg", "aiff", "mp3"])
def test_other_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, tone(44100), 44100)
    assert abs(len(read_audio(path)) - STT_RATE_HZ) < 2000  # MP3 pads its ends


def test_float_past_full_scale_is_scaled_not_clipped(tmp_path: Path) -> None:
    loud = tone(STT_RATE_HZ) * 10
    samples = read_audio(write(tmp_path / "a.wav", loud, STT_RATE_HZ, "FLOAT"))
    np.testing.assert_allclose(samples, loud / np.abs(loud).max(), atol=1e-6)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000])
def test_wav_from_a_pipe_has_no_size_and_still_reads(tmp_path: Path, size: int) -> None:
    assert len(read_audio(wav_with_data_size(tmp_path / "a.wav", size))) == STT_RATE_HZ


def test_longest_allowed_file_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", np.zeros(MAX_FILE_S * 8000, np.int16), 8000)
    assert len(read_audio(path)) == MAX_FILE_S * STT_RATE_HZ


def refusal(path: Path) -> str:
    with pytest.raises(UnpausedError) as caught:
        read_audio(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


def test_missing_and_folder(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.wav")
    assert "folder" in refusal(tmp_path)


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "recording.wav"
    os.mkfifo(path)
    with pytest.raises(UnpausedError, match="no regular file"):
        read_audio(path)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.touch()
    assert "0 bytes" in refusal(path)


def test_text_named_wav(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_text("these are not the samples you are looking for\n" * 20)
    assert "as audio" in refusal(path)


def test_a_damaged_mp3_is_not_said_to_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    path.write_bytes(np.random.default_rng(0).bytes(5000))
    assert "as audio" in refusal(path) and "exist" not in refusal(path)


def test_header_without_samples(tmp_path: Path) -> None:
    assert "0 samples" in refusal(write(tmp_path / "a.wav", np.zeros(0, np.int16), 16000))


@pytest.mark.parametrize("keep", [20000, 20001, 46, 30])
def test_truncated_wav(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "a.wav", tone(STT_RATE_HZ), STT_RATE_HZ)
    path.write_bytes(path.read_bytes()[:keep])
    message = refusal(path)
    assert "truncated" in message or keep < 44


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3"])
def test_truncated_compressed_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, tone(44100, 5.0), 44100)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refusal(path)


def test_hour_long_file_is_refused_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with soundfile.SoundFile(path, "w", 8000, 1, "PCM_U8") as file:
        for _ in range(60):
            file.write(np.zeros(60 * 8000, np.int16))
    assert "60 minutes" in refusal(path)


def test_not_a_number(tmp_path: Path) -> None:
    samples = tone(STT_RATE_HZ)
    samples[100] = np.nan
    assert "NaN" in refusal(write(tmp_path / "a.wav", samples, STT_RATE_HZ, "FLOAT"))


def test_absurd_rate(tmp_path: Path) -> None:
    assert "corrupt" in refusal(write(tmp_path / "a.wav", tone(16000), 1_092_676))


def test_pcm16_round_trip_and_clipping() -> None:
    pcm16 = np.array([-32767, -1, 0, 1, 32767], np.int16)
    np.testing.assert_array_equal(to_pcm16(from_pcm16(pcm16)), pcm16)
    np.testing.assert_array_equal(from_pcm16(pcm16.astype("<i2").tobytes()), from_pcm16(pcm16))
    np.testing.assert_array_equal(to_pcm16(np.array([-3.0, 3.0])), [-32767, 32767])
    assert from_pcm16(np.array([-32768], np.int16))[0] == -1.0


def test_odd_number_of_bytes_is_refused() -> None:
    with pytest.raises(UnpausedError, match="pairs"):
        from_pcm16(b"\0\0\0")


@pytest.mark.parametrize("from_hz, to_hz", [(48000, 16000), (44100, 16000), (16000, 16000)])
def test_resampling_in_pieces_equals_resampling_at_once(from_hz: int, to_hz: int) -> None:
    samples = tone(from_hz)
    whole = Resampler(from_hz, to_hz).push(samples, last=True)
    stream = Resampler(from_hz, to_hz)
    pieces = [stream.push(samples[at : at + 777]) for at in range(0, len(samples), 777)]
    np.testing.assert_allclose(np.concatenate([*pieces, stream.flush()]), whole, atol=1e-6)


def test_write_wav_round_trip(tmp_path: Path) -> None:
    pcm16 = to_pcm16(tone(22050))
    path = tmp_path / "reply.wav"
    path.write_text("what was there before")
    write_wav(path, pcm16, 22050)
    content, rate_hz = soundfile.read(path, dtype="int16")
    assert rate_hz == 22050
    np.testing.assert_array_equal(content, pcm16)
    assert list(tmp_path.iterdir()) == [path]


def test_write_wav_leaves_nothing_half_written(tmp_path: Path) -> None:
    target = tmp_path / "folder.wav"
    target.mkdir()
    with pytest.raises(UnpausedError, match="cannot write"):
        write_wav(target, np.zeros(10, np.int16), 22050)
    with pytest.raises(UnpausedError, match="cannot write"):
        write_wav(tmp_path / "none" / "a.wav", np.zeros(10, np.int16), 22050)
    assert list(tmp_path.iterdir()) == [target]
