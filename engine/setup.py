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
from engine.sampling import SamplingParams
from engine.weights import Progress, load_model

DEFAULT_MODEL = "smollm2-135m-instruct"
# The values of SmolLM2-Instruct's model card.
CHAT_SAMPLING = SamplingParams(temperature=0.2, top_p=0.9, max_tokens=256)


def best_device() -> torch.device:
    """The first CUDA GPU, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def open_model(
    spec: str, fetching: FetchProgress | None = None, loading: Progress | None = None
) -> Model:
    """Resolve `spec` (a known name, a local path, a hub repository) and load it.

    bfloat16 on every device: on CPUs, too, it halves the bytes that decoding has to read.
    """
    path = resolve(spec, fetching)
    name = spec if spec in known_names("llm") else Path(spec).absolute().name.removesuffix(".gguf")
    return load_model(path, best_device(), torch.bfloat16, name, loading)


def open_engine(name: str, model: Model, speaking: bool = False) -> DecodeEngine:
    """Engine `name` on `model`.

    With `speaking`, one core is left to speech: decoding on every core makes the voice stutter.
    """
    cores = os.cpu_count() or 1
    return engine_entry(name).build(model, max(1, cores - 1) if speaking else cores)
