"""Speech to listen to, and the real models, loaded once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from piper import PiperVoice, SynthesisConfig

from audio.frames import STT_RATE_HZ, Resampler, read_audio
from audio.stt import Transcriber
from audio.tts import Synthesizer

Say = Callable[[str], np.ndarray]


@pytest.fixture(scope="session")
def transcriber(whisper_dir: Path) -> Transcriber:
    return Transcriber(whisper_dir)


@pytest.fixture(scope="session")
def synthesizer(voice_path: Path) -> Synthesizer:
    return Synthesizer(voice_path)


@pytest.fixture(scope="session")
def steady_synthesizer(voice_path: Path) -> Synthesizer:
    """Without the voice's randomness: what it says sounds the same in every run."""
    made = Synthesizer(voice_path)
    made._voice.config.noise_scale = made._voice.config.noise_w_scale = 0.0
    return made


@pytest.fixture(scope="session")
def say(voice_path: Path) -> Say:
    """float32 [n] at 16 kHz of a text, in Piper's voice without its randomness."""
    voice = PiperVoice.load(voice_path)
    config = SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0, volume=0.5)

    def spoken(text: str) -> np.ndarray:
        parts = [chunk.audio_float_array for chunk in voice.synthesize(text, config)]
        resampler = Resampler(voice.config.sample_rate, STT_RATE_HZ)
        return resampler.push(np.concatenate(parts), last=True)

    return spoken


@pytest.fixture(scope="session")
def say_robotic(tmp_path_factory: pytest.TempPathFactory) -> Say:
    """The same in the voice of eSpeak NG, which has little in common with the other."""
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed")
    path = tmp_path_factory.mktemp("speech") / "robotic.wav"

    def spoken(text: str) -> np.ndarray:
        subprocess.run(["espeak-ng", "-v", "en-us", "-s", "140", "-w", path, text], check=True)
        return read_audio(path)

    return spoken


@pytest.fixture(scope="session")
def save_wav(tmp_path_factory: pytest.TempPathFactory) -> Callable[[np.ndarray, int], Path]:
    """Write float samples to a WAV of their own."""
    folder = tmp_path_factory.mktemp("wav")

    def save(samples: np.ndarray, rate_hz: int) -> Path:
        path = folder / f"{len(list(folder.iterdir()))}.wav"
        soundfile.write(path, samples, rate_hz)
        return path

    return save
