"""Speech models and voices by the names people know them by, beyond those of the manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from assets import hub
from assets.manifest import load_manifest
from assets.resolver import resolve
from assets.source import Progress, no_progress
from engine.errors import UnpausedError

_STT_NAMES = {"tiny.en": "whisper-tiny.en", "base": "whisper-base"}
_VOICE_NAMES = {"en_us-joe-medium": "joe-us-medium"}
_PIPER_REPO = "rhasspy/piper-voices"
_PIPER_NAME = re.compile(r"([a-z]{2,3})_([A-Z]{2})-(\w+)-(x_low|low|medium|high)")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def locate_stt(spec: str, progress: Progress = no_progress) -> Path:
    """The folder of a Whisper model in CTranslate2's format.

    `spec`: "stt" (the default), a name of the manifest, "tiny.en" or "base", a folder, any name
    that faster-whisper knows ("small", "large-v3"), or a hub repository as owner/name.
    Raises `UnpausedError`.
    """
    from faster_whisper import available_models

    name = _STT_NAMES.get(spec.lower(), spec)
    if _in_manifest(name, "stt") or (name and Path(name).expanduser().exists()):
        return resolve(name, progress, "stt")
    if name not in available_models() and not _REPOSITORY.fullmatch(name):
        known = ", ".join(dict.fromkeys([*_STT_NAMES, *available_models()]))
        raise UnpausedError(
            f"unknown speech model '{spec}': use one of {known}, a folder, or a hub repository as "
            "owner/name"
        )
    return Path(_from_hub(name, lambda local: _whisper(name, local)))


def locate_voice(spec: str, progress: Progress = no_progress) -> Path:
    """The .onnx file of a Piper voice, with its .onnx.json beside it.

    `spec`: "voice" (the default), a name of the manifest, the path of an .onnx file, or one of
    Piper's own names, as "en_GB-alba-medium". Raises `UnpausedError`.
    """
    name = _VOICE_NAMES.get(spec.lower(), spec)
    if _in_manifest(name, "voice") or (name and Path(name).expanduser().exists()):
        return resolve(name, progress, "voice")
    match = _PIPER_NAME.fullmatch(name)
    if match is None:
        known = ", ".join(load_manifest().names("voice"))
        raise UnpausedError(
            f"unknown voice '{spec}': use one of {known}, the path of an .onnx file, or a name of "
            "Piper's as en_GB-alba-medium"
        )
    language, region, speaker, quality = match.groups()
    path = f"{language}/{language}_{region}/{speaker}/{quality}/{name}.onnx"
    return Path(_from_hub(name, lambda local: _piper(path, local)))


def _in_manifest(name: str, role: str) -> bool:
    return name.lower() == role or name.lower() in load_manifest().names(role)


def _from_hub(name: str, fetch: Callable[[bool], str]) -> str:
    """What is in the hub client's cache, or else from the hub, if it may and can be asked."""
    try:
        return fetch(True)
    except Exception:  # not there: the client has several ways of saying so
        pass
    if hub.offline():
        raise UnpausedError(f"{name} is not in the cache and HF_HUB_OFFLINE is set")
    if not hub.reachable():
        raise UnpausedError(f"{name} is not in the cache and the model hub cannot be reached")
    try:
        return fetch(False)
    except Exception as error:  # the client raises what its transport raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnpausedError(f"{name} cannot be fetched: {reason}") from error


def _whisper(name: str, local: bool) -> str:
    from faster_whisper import download_model

    return str(download_model(name, local_files_only=local))


def _piper(path: str, local: bool) -> str:
    from huggingface_hub import hf_hub_download

    hf_hub_download(_PIPER_REPO, f"{path}.json", local_files_only=local)
    return str(hf_hub_download(_PIPER_REPO, path, local_files_only=local))
