"""Files that a person named: refused before the work, and then written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from engine.errors import UnpausedError


def check_writable(path: Path) -> None:
    """Raise `UnpausedError` unless a plain file can be put at `path`."""
    folder = path.absolute().parent
    if path.is_symlink() or (path.exists() and not path.is_file()):  # /dev/stdout is a link
        raise UnpausedError(f"cannot write {path}: it is no plain file; name another")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UnpausedError(f"cannot write {path}: {folder} is no folder that can be written to")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write what becomes `path` in one step; until then there is what was there before.

    Raises `UnpausedError` where the system refuses.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with partial.open("xb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise UnpausedError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
