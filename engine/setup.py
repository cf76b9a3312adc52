"""From what a user names to a loaded model and its engines."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from assets.resolver import known_names, resolve
from assets.source import Progress as FetchProgress
from engine.base import DecodeEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.registry import engine_entry
from engine.speculation import Method, Speculation, check_vocabulary, read_choice
from engine.weights import Inspected, Progress, check_memory, inspect_model, load_model

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
    name, path, inspected = _inspect(spec, fetching)
    _inspected = path, inspected
    return name, path


def open_model(name: str, path: Path, progress: Progress | None = None) -> Model:
    """Load what `locate_model` found onto the best device."""
    global _inspected
    (located, found), _inspected = _inspected, (None, None)
    inspected = found if located == path else None
    return load_model(path, best_device(), DTYPE, name, progress, inspected)


@dataclass(frozen=True)
class Drafting:
    """What `--speculate` asks for, with its draft model found but not loaded."""

    method: Method
    name: str = ""
    path: Path | None = None
    inspected: Inspected | None = None


def locate_drafting(
    choice: str, model: tuple[str, Path | None], fetching: FetchProgress | None = None
) -> Drafting | None:
    """What `choice` (off, ngram, draft:MODEL) needs beside `model`, which was located last.

    `model` is its name and its files, None where it is made of none.
    Raises `UnpausedError` for a draft model that cannot be had, does not speak the model's tokens
    or is the model itself.
    """
    method, spec = read_choice(choice)
    if method != "draft":
        return Drafting(method) if method else None
    name, path, inspected = _inspect(spec, fetching)
    if model[1] is not None and path.samefile(model[1]):
        raise UnpausedError(
            f"{name} cannot draft for itself: its drafts would cost what they save; "
            "name a smaller model of the same vocabulary"
        )
    if _inspected[1] is not None and _inspected[0] == model[1]:
        check_vocabulary(name, inspected[1].vocab, model[0], _inspected[1][1].vocab)
    return Drafting(method, name, path, inspected)


def open_speculation(drafting: Drafting | None, model: Model) -> Speculation | None:
    """Load what `locate_drafting` found, beside `model` on its device. Raises `UnpausedError`."""
    if drafting is None:
        return None
    if drafting.path is None or drafting.inspected is None:
        return Speculation(drafting.method)
    name, config = drafting.name, drafting.inspected[1]
    check_memory(config, model.device, model.dtype, name)  # again: the model itself is there now
    draft = load_model(drafting.path, model.device, model.dtype, name, inspected=drafting.inspected)
    speculation = Speculation(drafting.method, draft_model=draft)
    speculation.check(model)
    return speculation


def open_engine(
    name: str, model: Model, speaking: bool = False, speculation: Speculation | None = None
) -> DecodeEngine:
    """Engine `name` on `model`.

    With `speaking`, one core is left to speech: decoding on every core makes the voice stutter.
    """
    cores = os.cpu_count() or 1
    threads = max(1, cores - 1) if speaking else cores
    return engine_entry(name).build(model, threads, speculation)


def _inspect(spec: str, fetching: FetchProgress | None) -> tuple[str, Path, Inspected]:
    path = resolve(spec, fetching, "llm")
    name = spec if spec in known_names("llm") else path.absolute().name.removesuffix(".gguf")
    return name, path, inspect_model(path, best_device(), DTYPE, name)
