"""Whisper as CTranslate2 runs it: a folder with a model, on the CPU or a GPU."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import ctranslate2
import numpy as np
from faster_whisper import WhisperModel

from engine.errors import UnpausedError

logger = logging.getLogger(__name__)

Place = Literal["cpu", "cuda"]
Device = Literal["auto", "cpu", "cuda"]

_COMPUTE = {"cpu": "int8", "cuda": "float16"}
_MODEL_FILES = ("model.bin", "config.json", "tokenizer.json")


def open_whisper(model_dir: Path, threads: int, device: Device) -> tuple[WhisperModel, Place]:
    """The model and where it runs: with "auto" on a GPU, where one can be found and used.

    Raises `UnpausedError` when the folder does not hold a model, or the device is not there.
    """
    place = pick_device(device)
    whisper = _load(model_dir, threads, place)
    if device == "auto" and place == "cuda" and not _runs(whisper):
        return _load(model_dir, threads, "cpu"), "cpu"
    return whisper, place


def pick_device(device: Device) -> Place:
    """Where to transcribe. Raises `UnpausedError` when a GPU is asked for and there is none."""
    if device == "cpu":
        return "cpu"
    if ctranslate2.get_cuda_device_count() > 0:
        return "cuda"
    if device == "cuda":
        raise UnpausedError("speech to text finds no CUDA GPU here: leave the device to itself")
    return "cpu"


def _runs(whisper: WhisperModel) -> bool:
    """Whether the GPU can really be used: CTranslate2 finds out about its libraries this late."""
    features = np.zeros((1, whisper.model.n_mels, 100), np.float32)
    try:
        whisper.model.encode(ctranslate2.StorageView.from_array(features), to_cpu=True)
    except RuntimeError as error:
        logger.warning("speech to text stays on the CPU: %s", error)
        return False
    return True


def _load(model_dir: Path, threads: int, device: Place) -> WhisperModel:
    if threads < 1:
        raise UnpausedError(f"speech to text needs 1 thread or more; got {threads}")
    # Checked here, for where one is missing faster-whisper asks a model hub.
    missing = [name for name in _MODEL_FILES if not (model_dir / name).is_file()]
    if missing:
        raise UnpausedError(
            f"{model_dir} is no Whisper model in CTranslate2's format: no {', '.join(missing)}"
        )
    try:
        return WhisperModel(
            str(model_dir),
            device=device,
            compute_type=_COMPUTE[device],
            cpu_threads=threads,
            num_workers=1,
        )
    except Exception as error:  # CTranslate2 and tokenizers raise what they like on a bad file
        reason = " ".join(str(error).split())
        raise UnpausedError(f"cannot load the Whisper model in {model_dir}: {reason}") from error
