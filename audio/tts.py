"""Text to speech: Piper, at a constant level, without the silence around each sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from piper import PiperVoice, SynthesisConfig
from piper.config import PiperConfig

from audio import phonemes
from audio.frames import to_pcm16
from audio.spoken_form import spoken_form
from engine.errors import UnpausedError

# Piper scales each sentence to its own peak, so that a calm clause after a lively one is louder
# than it. A constant gain keeps them apart; this one leaves the loudest of 32 sentences, measured
# with en_US-joe-medium at a peak of 0.71, at 0.92.
_GAIN = 1.3
_AUDIBLE = 0.005  # of full scale; the voices' own noise is at 0.0001
_LEAD_MS = 10  # kept of the 40-60 ms before the first sound
# What is kept of the 135-275 ms after the last one, so that neighbours sound like one speaker.
_GAP_MS = {".": 160, "!": 160, "?": 160, "…": 160, ":": 140, ";": 100, ",": 80}
_GAP_OTHER_MS = 40
_CLOSING = "\"'\u201d\u2019\u00bb)]}"
# Against one busy thread this still leaves a quarter of a core; speech needs 0.05 to 0.15 of one.
_NICENESS = 5


class Cancel:
    """Ends a synthesis under way, and those after it, from another thread."""

    def __init__(self) -> None:
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = 4  # being cancelled is no error to report

    def set(self) -> None:
        """Takes effect within milliseconds: the network looks between its layers."""
        self._options.terminate = True

    @property
    def is_set(self) -> bool:
        return bool(self._options.terminate)


class Synthesizer:
    """One Piper voice (a .onnx file with its .onnx.json beside it), safe to share by threads.

    `threads` of the network; one leaves the other cores to decoding. Raises `UnpausedError` when
    the files are not a voice.
    """

    def __init__(self, voice_path: Path | str, threads: int = 1) -> None:
        phonemes.use()
        self._voice = _load(Path(voice_path), threads)
        self.rate_hz: int = self._voice.config.sample_rate
        self._english = self._voice.config.espeak_voice.startswith("en")

    def warm(self) -> None:
        """Run once: the first run of a network takes longer than the next."""
        self.synthesize("Ready.")

    def tidy(self) -> None:
        """Return to the system what long clauses needed: the network keeps it for the next one."""
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        session = _Session(self._voice.session, options)
        for _ in dataclasses.replace(self._voice, session=session).synthesize("Ready."):
            pass

    def synthesize(self, text: str, cancel: Cancel | None = None) -> np.ndarray:
        """Speak `text`: int16 [n] at `rate_hz`, nothing for a text without a word. Figures and
        abbreviations are read as English where the voice is.

        A cancelled synthesis gives nothing either.
        """
        text = _sayable(text)
        if self._english:
            text = spoken_form(text)
        if not any(map(str.isalnum, text)):
            return np.zeros(0, np.int16)
        cancel = cancel or Cancel()
        voice = dataclasses.replace(
            self._voice, session=_Session(self._voice.session, cancel._options)
        )
        config = SynthesisConfig(normalize_audio=False)
        parts: list[np.ndarray] = []
        try:
            for chunk in voice.synthesize(text, config):
                parts.append(chunk.audio_float_array * _GAIN)
        except Exception:
            if not cancel.is_set:
                raise
        if cancel.is_set or not parts:
            return np.zeros(0, np.int16)
        gaps = [_GAP_MS["."]] * (len(parts) - 1) + [_gap_ms(text)]
        trimmed = [trim(part, self.rate_hz, gap) for part, gap in zip(parts, gaps, strict=True)]
        return to_pcm16(np.concatenate(trimmed))


def trim(samples: np.ndarray, rate_hz: int, gap_ms: int) -> np.ndarray:
    """Cut the silence around float32 [n] down to `_LEAD_MS` before and `gap_ms` after."""
    audible = np.flatnonzero(np.abs(samples) > _AUDIBLE)
    if not len(audible):
        return samples[:0]
    lead, gap = (rate_hz * ms // 1000 for ms in (_LEAD_MS, gap_ms))
    return samples[max(0, int(audible[0]) - lead) : int(audible[-1]) + 1 + gap]


def lower_thread_priority() -> None:
    """Let the calling thread give way to others, where the system has a priority per thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            niceness = min(19, os.getpriority(os.PRIO_PROCESS, os.getpid()) + _NICENESS)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


class _Session:
    """The part of an ONNX session that Piper calls, with run options, which Piper passes none."""

    def __init__(
        self, session: onnxruntime.InferenceSession, options: onnxruntime.RunOptions
    ) -> None:
        self._session, self._options = session, options

    def run(self, outputs: Sequence[str] | None, inputs: dict[str, Any]) -> Any:
        return self._session.run(outputs, inputs, self._options)


def _sayable(text: str) -> str:
    """Without what espeak-ng refuses (NUL, surrogates) and Piper's `[[phonemes]]`."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return printable.replace("[[", "[")


def _gap_ms(text: str) -> int:
    ending = text.rstrip().rstrip(_CLOSING)[-1:]
    return _GAP_MS.get(ending, _GAP_OTHER_MS)


def _load(path: Path, threads: int) -> PiperVoice:
    if threads < 1:
        raise UnpausedError(f"text to speech needs 1 thread or more; got {threads}")
    config_path = Path(f"{path}.json")
    for file in (path, config_path):
        if not file.is_file():
            raise UnpausedError(f"no such file: {file}; a Piper voice is a .onnx and a .onnx.json")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # one would be kept for each length of a clause
    try:
        # PiperVoice.load has no way to pass session options, and takes every core.
        config = PiperConfig.from_dict(json.loads(config_path.read_text(encoding="utf-8")))
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        return PiperVoice(session=session, config=config)
    except Exception as error:  # onnxruntime's own types share no base but this one
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UnpausedError(f"cannot load the Piper voice {path}: {reason}") from error
