"""Compiling the CPU engine once for a machine, and finding it compiled the next time.

numba keeps compiled code on disk but only looks at the file of the function it is asked for, not
at what that calls. So its folder is named after everything the code depends on, and an edit, an
upgrade or another processor gets a folder of its own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from assets.cache import default_root

_KEPT = 4  # folders of other versions left in place: switching branches is common
_SOURCES = ("kernels/cpu*.py", "kernels/stages.py", "engine/mailbox.py", "engine/speculation.py")

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_compiled: list[Callable[..., None]] = []  # the one compiled function of this process


def resident_function(arguments: tuple[Any, ...]) -> Callable[..., None]:
    """`kernels.cpu.reside` compiled for arguments of these types; from disk where possible."""
    with _lock:
        if not _compiled:
            from kernels.cpu import reside

            _compiled.append(compiled(reside, arguments, cache_folder()))
        return _compiled[0]


def compiled(function: Any, arguments: tuple[Any, ...], folder: Path) -> Any:
    """The numba `function`, compiled for `arguments` or loaded from `folder`.

    Works without a writable folder too, then compiling anew in every process; it says so. numba
    writes its files under other names and renames them, so an interrupted compilation leaves
    nothing half-written and processes that compile at once do not disturb each other.
    """
    import numba

    signature = tuple(numba.typeof(argument) for argument in arguments)
    if not _usable(folder):
        _log.warning("%s cannot be written: compiling the CPU engine anew, about 40 s", folder)
        function.compile(signature)
        return function
    _use_folder(function, folder)
    # numba keeps what it compiles by where the sources lie: another checkout has none yet.
    if not any(Path(function.stats.cache_path).glob("*.nbi")):
        _log.warning("compiling the CPU engine, once for this machine: about 40 s")
    try:
        function.compile(signature)
    except Exception:  # numba and pickle raise what they like over a damaged file
        _log.warning("the compiled CPU engine in %s is damaged: compiling it anew", folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        _use_folder(function, folder)
        function.compile(signature)
    _remove_old(folder)
    return function


def _use_folder(function: Any, folder: Path) -> None:
    import numba

    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        function.enable_caching()
    finally:
        numba.config.CACHE_DIR = before


def cache_folder() -> Path:
    """Where code compiled from these sources by these compilers for this processor is kept."""
    import llvmlite
    import numba
    from numba.core.registry import cpu_target

    parts = [
        numba.__version__,
        llvmlite.__version__,
        platform.python_version(),
        *map(str, cpu_target.target_context.codegen().magic_tuple()),
    ]
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256("\0".join(parts).encode())
    for pattern in _SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return default_root() / "compiled" / f"cpu-{digest.hexdigest()[:16]}"


def _usable(folder: Path) -> bool:
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    return False


def _remove_old(current: Path) -> None:
    """Keep the latest few folders; another process may be reading, so faults are ignored."""
    with suppress(OSError):
        os.utime(current)
        others = [path for path in current.parent.glob("cpu-*") if path != current]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[_KEPT:]:
            shutil.rmtree(path, ignore_errors=True)
