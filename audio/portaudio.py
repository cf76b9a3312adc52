"""PortAudio: the module, its start and restart, and its faults in words.

`sounddevice` is imported on first use: it fails to import where the PortAudio library is missing,
and the page, the files and the tests need neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from engine.errors import UnpausedError

Kind = Literal["input", "output"]
NAMES: dict[Kind, str] = {"input": "microphone", "output": "loudspeaker"}
OPTIONS: dict[Kind, str] = {"input": "--microphone", "output": "--loudspeaker"}

# PortAudio's codes (portaudio.h, enum PaErrorCode)
_UNAVAILABLE, _BAD_CHANNELS, _BAD_RATE, _BAD_FORMAT, _HOST = -9985, -9998, -9997, -9994, -9999
_NICENESS = -11  # what sound servers give themselves
_EACCES, _EBUSY = -13, -16  # as ALSA reports them
SOUND_NODES = Path("/dev/snd")  # where Linux has them


def portaudio() -> ModuleType:
    """The `sounddevice` module. Raises `UnpausedError` where it or PortAudio is missing."""
    _silence_alsa()
    try:
        import sounddevice
    except ImportError as error:
        raise UnpausedError(f"no sounddevice ({error}): run pip install -e .") from error
    except OSError as error:
        raise UnpausedError(
            "the PortAudio library is missing: install it (apt install libportaudio2, "
            "dnf install portaudio, or brew install portaudio)"
        ) from error
    return sounddevice


def rescan() -> None:
    """Make PortAudio look for devices anew, which it does only when it starts.

    Every stream must be closed. Faults are left for whatever asks next.
    """
    sounddevice = portaudio()
    with contextlib.suppress(sounddevice.PortAudioError):
        sounddevice._terminate()
    with contextlib.suppress(sounddevice.PortAudioError):
        sounddevice._initialize()


@contextlib.contextmanager
def native_silence() -> Iterator[None]:
    """Keep what PortAudio's own code writes to standard error, such as the source lines that met
    with a device pulled out, off the screen. What Python writes there still comes through.
    """
    try:
        screen = os.dup(2) if sys.stderr.fileno() == 2 else None
    except (AttributeError, OSError, ValueError):  # closed, or not the process's own
        screen = None
    if screen is None:
        yield
        return
    python, sys.stderr = sys.stderr, open(screen, "w", buffering=1, errors="replace")  # noqa: SIM115
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(screen, 2)
        sys.stderr.close()
        sys.stderr = python


def hurry_thread() -> None:
    """Let the calling thread go before others, where this user may: a callback that comes too late
    is heard. Elsewhere the system's buffer has to do."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def refused_settings(error: Exception) -> bool:
    """Whether `error` is about a rate, a channel count or a format, so that others may do."""
    return _code(error) in (_BAD_CHANNELS, _BAD_RATE, _BAD_FORMAT)


def fault(error: Exception, kind: Kind, name: str) -> UnpausedError:
    """PortAudio's `error` about device `name`, in words that say what to do."""
    what, other = f"the {NAMES[kind]} {name}", f"or choose another with {OPTIONS[kind]}"
    code, (host_code, host_text) = _code(error), _host(error)
    if code == _HOST and (host_code == _EACCES or "permission" in host_text.lower()):
        return UnpausedError(
            f"this system does not let you use {what}: allow it in the privacy settings (on Linux, "
            f"join the group audio), {other}"
        )
    if code == _UNAVAILABLE or (code == _HOST and host_code == _EBUSY):
        return UnpausedError(f"{what} is in use by another program: close that, {other}")
    return UnpausedError(f"{what} cannot be opened ({words(error)}): reconnect it, {other}")


def words(error: Exception) -> str:
    """The host's own words, or PortAudio's, on one line."""
    return " ".join((_host(error)[1] or str(error.args[0] if error.args else error)).split())


def access_hint() -> str:
    """Linux lists no device that may not be opened: say so where that is what is wrong."""
    nodes = list(SOUND_NODES.glob("pcm*"))
    if nodes and not any(os.access(node, os.R_OK | os.W_OK) for node in nodes):
        return " (permission refused: /dev/snd is not yours to use; join the group audio)"
    return ""


def _code(error: Exception) -> int:
    return error.args[1] if len(error.args) > 1 else 0


def _host(error: Exception) -> tuple[int, str]:
    """The host's own code and words."""
    if len(error.args) > 2:
        _, code, text = error.args[2]
        return code, str(text)
    return 0, ""


@functools.cache
def _silence_alsa() -> Any:
    """Keep ALSA from writing about every device it fails to find into the terminal."""
    if sys.platform != "linux":
        return None
    handler = ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p
    )(lambda *_: None)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libasound.so.2").snd_lib_error_set_handler(handler)
    return handler  # cached, or it would be freed while ALSA calls it
