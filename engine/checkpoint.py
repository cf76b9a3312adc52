"""Model files on disk, behind one small interface with Hugging Face's tensor names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from engine.errors import UnpausedError


class Checkpoint(Protocol):
    """An opened model file or folder. Nothing but headers has been read."""

    architecture: str  # Hugging Face's or GGUF's name
    config: dict[str, Any]  # as in Hugging Face's config.json
    path: Path

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape by Hugging Face name."""
        ...

    def read_into(self, name: str, destination: torch.Tensor) -> None:
        """Copy tensor `name` into `destination` (same shape), converted to its dtype."""
        ...

    def blocks(self, name: str) -> tuple[np.ndarray, str] | None:
        """Tensor `name` still quantised: its rows as raw bytes, uint8 [rows, bytes of a row], and
        the format's name; None when it is stored as plain numbers. May be a view of the file.
        """
        ...


class SafetensorsCheckpoint:
    """A Hugging Face model folder: config.json and one or more memory-mapped safetensors."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.config = _read_json(folder / "config.json")
        architectures = self.config.get("architectures") or ["(none named in config.json)"]
        self.architecture = str(architectures[0])
        self._refuse_quantised()
        self._files = {path: _open(path) for path in self._shards()}
        self._owner = {name: path for path, file in self._files.items() for name in file.keys()}  # noqa: SIM118

    def _refuse_quantised(self) -> None:
        quantisation = self.config.get("quantization_config")
        if quantisation:
            from engine.gguf_file import SUPPORTED_TYPES

            raise UnpausedError(
                f"{self.path} is quantised by {quantisation.get('quant_method', 'an unknown way')};"
                f" supported: plain safetensors, or GGUF with {', '.join(SUPPORTED_TYPES)}"
            )

    def _shards(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            weight_map = _read_json(index).get("weight_map", {})
            shards = [self.path / name for name in sorted(set(weight_map.values()))]
        else:
            shards = sorted(self.path.glob("*.safetensors"))
        missing = [path.name for path in shards if not path.exists()]
        if missing:
            raise UnpausedError(f"{self.path} lacks {', '.join(missing)}: download it again")
        if not shards:
            raise UnpausedError(f"{self.path} holds no .safetensors file")
        return shards

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {
            name: tuple(self._files[path].get_slice(name).get_shape())
            for name, path in self._owner.items()
        }

    def read_into(self, name: str, destination: torch.Tensor) -> None:
        destination.copy_(self._files[self._owner[name]].get_tensor(name))

    def blocks(self, name: str) -> tuple[np.ndarray, str] | None:
        return None


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder. Raises `UnpausedError` for anything else."""
    if path.is_dir() and (path / "config.json").exists():
        try:
            return SafetensorsCheckpoint(path)
        except (AttributeError, IndexError, KeyError, TypeError) as error:  # JSON of another shape
            raise UnpausedError(f"{path}: config.json or the index is garbled ({error})") from error
    if path.is_file() and path.suffix == ".gguf":
        from engine.gguf_file import GGUFCheckpoint

        return GGUFCheckpoint(path)
    raise UnpausedError(
        f"{path} is neither a .gguf file nor a folder with config.json and .safetensors files"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnpausedError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise UnpausedError(f"cannot read {path}: not a JSON object")
    return content


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UnpausedError(f"{path} is cut short or damaged ({error})") from error
