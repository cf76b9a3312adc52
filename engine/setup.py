"""From what a user names to a loaded model and its engines."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from assets.resolver import known_names, resolve
from assets.source import Progress as FetchProgress
from engine.base import DecodeEngine
from engine.models.base import Model
from engine.registry import engine_entry
from engine.weights import Inspected, Progress, inspect_model, load_model

DEFAULT_MODEL = "smollm2-135m-instruct"
# bfloat16 on every device: on CPUs, too, it halves the bytes that decoding has to read.
DTYPE = torch.bfloat16

# What `locate_model` saw last, for the next `open_model`: reading a header takes 0.2 s.
_inspected: tuple[Path, Inspected] | tuple[None, None] = (None, None)


def best_device() -> torch.device:
    """The first CUDA GPU, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def locate_model(spec: str, fetching: FetchProgress | None = None) -> tuple[str, Path]:
    """The name and the files of `spec`: a known name, a local path, a hub repository.

    Fetches what is not here; raises `UnpausedError` for what cannot be had or cannot be run.
    """
    global _inspected
    path = resolve(spec, fetching, "llm")
    name = spec if spec in known_names("llm") else path.absolute().name.removesuffix(".gguf")
    _inspected = path, inspect_model(path, best_device(), DTYPE, name)
    return name, path


def open_model(name: str, path: Path, progress: Progress | None = None) -> Model:
    """Load what `locate_model` found onto the best device."""
    global _inspected
    (located, found), _inspected = _inspected, (None, None)
    inspected = found if located == path else None
    return load_model(path, best_device(), DTYPE, name, progress, inspected)


def open_engine(name: str, model: Model, speaking: bool = False) -> DecodeEngine:
    """Engine `name` on `model`.

    With `speaking`, one core is left to speech: decoding on every core makes the voice stutter.
    """
    cores = os.cpu_count() or 1
    return engine_entry(name).build(model, max(1, cores - 1) if speaking else cores)
