"""Has the speaker finished? Smart Turn v3.2 judges the sound of an utterance.

A Whisper-tiny encoder with a classifier (Daily's `smart-turn`, BSD-2-Clause), int8 ONNX, 65 ms on
one core. It hears the last 8 s, with silence before a shorter utterance, normalised to zero mean
and unit variance as its training did.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnxruntime
from faster_whisper.feature_extractor import FeatureExtractor

from audio.frames import STT_RATE_HZ
from engine.errors import UnpausedError

_WINDOW_S = 8
_SAMPLES = _WINDOW_S * STT_RATE_HZ
_VARIANCE_FLOOR = 1e-7
_WARM_RUNS = 3


class SmartTurn:
    """Safe to share by threads. Raises `UnpausedError` when the file is not the model."""

    def __init__(self, path: Path | str, threads: int = 1) -> None:
        self._session = _load(Path(path), threads)
        self._features = FeatureExtractor(chunk_length=_WINDOW_S)

    def warm_ms(self) -> float:
        """Run a few times, for the first takes longer; how long it takes from then on."""
        silence = np.zeros(STT_RATE_HZ, np.float32)
        times = []
        for _ in range(_WARM_RUNS):
            started = time.perf_counter()
            self.probability(silence)
            times.append(time.perf_counter() - started)
        return min(times) * 1000

    def probability(self, samples: np.ndarray) -> float:
        """That an utterance is complete: float32 [n] at 16 kHz, up to where it paused."""
        window = np.zeros(_SAMPLES, np.float32)
        last = samples[-_SAMPLES:]
        window[_SAMPLES - len(last) :] = last
        window -= window.mean()
        window /= np.sqrt(window.var() + _VARIANCE_FLOOR)
        frames = _SAMPLES // self._features.hop_length
        features = self._features(window, padding=0)[None, :, :frames]  # [1, mels, frames]
        inputs = {"input_features": np.ascontiguousarray(features, dtype=np.float32)}
        return float(self._session.run(None, inputs)[0].reshape(-1)[0])


def _load(path: Path, threads: int) -> onnxruntime.InferenceSession:
    if not path.is_file():
        raise UnpausedError(f"no such file: {path}; Smart Turn is one .onnx file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own types share no base but this one
        reason = " ".join(str(error).split())
        raise UnpausedError(f"cannot load the turn model {path}: {reason}") from error
    names = [given.name for given in session.get_inputs()]
    if names != ["input_features"]:
        raise UnpausedError(f"{path} is no Smart Turn model: its inputs are {', '.join(names)}")
    return session
