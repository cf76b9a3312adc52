"""What can be fetched, from where, and what its bytes must be: assets/manifest.toml, typed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UnpausedError

MANIFEST_PATH = Path(__file__).with_name("manifest.toml")


@dataclass(frozen=True)
class HubSource:
    """A repository on the model hub at one commit."""

    repo: str
    revision: str


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that carries weights."""

    project: str
    version: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class AssetFile:
    """One file of an asset: `members` of its wheels joined in order, or `hub_path` on the hub."""

    name: str
    sha256: str
    size_bytes: int
    members: tuple[str, ...]
    hub_path: str


@dataclass(frozen=True)
class Asset:
    """Weights pinned byte for byte. `entry` is the file that stands for it, or "." for all."""

    name: str
    role: str
    default: bool
    summary: str
    licence: str
    entry: str
    files: tuple[AssetFile, ...]
    wheels: tuple[Wheel, ...]
    hub: HubSource | None

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files once unpacked."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class HubModel:
    """A language model that only the hub has, known here by a short name."""

    name: str
    repo: str
    licence: str


@dataclass(frozen=True)
class Manifest:
    """Everything that has a name."""

    assets: tuple[Asset, ...]
    hub_models: tuple[HubModel, ...]

    def find(self, name: str) -> Asset | HubModel | None:
        """The entry called `name` (in any case); a role stands for its default asset."""
        wanted = name.lower()
        named: list[Asset | HubModel] = [*self.assets, *self.hub_models]
        matches = [entry for entry in named if entry.name == wanted]
        matches += [asset for asset in self.defaults() if asset.role == wanted]
        return matches[0] if matches else None

    def defaults(self) -> Iterator[Asset]:
        """The assets used when nothing else is asked for."""
        return (asset for asset in self.assets if asset.default)

    def names(self, role: str | None = None) -> list[str]:
        """Known names, of one role ("llm", "stt", "voice", "turn") or of all."""
        names = [asset.name for asset in self.assets if role in (None, asset.role)]
        if role in (None, "llm"):
            names += [model.name for model in self.hub_models]
        return names


def load_manifest(path: Path = MANIFEST_PATH) -> Manifest:
    """Read a manifest; raises `UnpausedError` naming the file when it is not one."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
        assets = tuple(_asset(entry) for entry in data.get("asset", []))
        models = tuple(HubModel(**entry) for entry in data.get("hub_model", []))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnpausedError(
            f"the list of weights {path} cannot be read ({error}): restore it from the project"
        ) from error
    return Manifest(assets, models)


def _asset(entry: dict[str, Any]) -> Asset:
    hub = entry.pop("hub", None)
    wheels = tuple(Wheel(**wheel) for wheel in entry.pop("wheel", []))
    files = tuple(_file(file) for file in entry.pop("file"))
    return Asset(files=files, wheels=wheels, hub=HubSource(**hub) if hub else None, **entry)


def _file(entry: dict[str, Any]) -> AssetFile:
    members = tuple(entry.pop("members", ()))
    hub_path = entry.pop("hub_path", entry["name"])
    return AssetFile(members=members, hub_path=hub_path, **entry)
