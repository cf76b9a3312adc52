"""Weights from the Hugging Face hub, through its own client and never through a fixed address."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.manifest import Asset, AssetFile
from assets.source import LOCAL_ERRNOS, Progress, SourceError
from engine.errors import UnpausedError

if TYPE_CHECKING:
    from tqdm.auto import tqdm

PROBE_TIMEOUT_S = 2.0
_ETAG_TIMEOUT_S = 5.0
_OFFLINE_VALUES = {"1", "on", "yes", "true"}  # what the hub's client takes for true
# What a decode engine reads of a repository: configuration, tokenizer and weights at its root.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_UNWANTED = ["*/*"]


def offline() -> bool:
    """Whether `HF_HUB_OFFLINE` forbids the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in _OFFLINE_VALUES


def reachable(timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Whether the hub answers within about `timeout_s`.

    Asked first because the client's own retries take 23 s to give up on an unreachable host. A
    thread does it because no timeout bounds the look-up of a name.
    """
    if offline():
        return False
    answers: list[bool] = []
    probe = threading.Thread(target=_probe, args=(timeout_s, answers), daemon=True)
    probe.start()
    probe.join(timeout_s)
    return any(answers)


def _probe(timeout_s: float, answers: list[bool]) -> None:
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils import get_session

        status = get_session().head(constants.ENDPOINT, timeout=timeout_s).status_code
        answers.append(status < 500)
    except Exception:  # whatever the transport raises, the answer is the same: not reachable
        answers.append(False)


def fetch_files(asset: Asset, files: Sequence[AssetFile], folder: Path, progress: Progress) -> None:
    """Put `files` of `asset` into `folder` under their names. Raises `SourceError`.

    Nothing is verified here. An `OSError` of the local disk passes through.
    """
    from huggingface_hub import hf_hub_download

    if asset.hub is None:
        raise SourceError("the model hub does not have it")
    total_bytes = sum(file.size_bytes for file in files)
    bars = _forwarding_bars(asset.name, total_bytes, progress)
    progress(asset.name, 0, total_bytes)
    for file in files:
        try:
            fetched = hf_hub_download(
                asset.hub.repo,
                file.hub_path,
                revision=asset.hub.revision,
                local_dir=folder,
                etag_timeout=_ETAG_TIMEOUT_S,
                tqdm_class=bars,
            )
        except Exception as error:  # the client raises what its transport raises
            raise _failure(error, asset.hub.repo) from error
        os.replace(fetched, folder / file.name)


def snapshot(name: str, repo: str, progress: Progress) -> Path:
    """The folder with configuration, tokenizer and weights of `repo`, fetched when needed.

    It lies in the hub client's own cache, which checks each file against the hub's etag and is
    shared with other programs. A complete snapshot is used without asking the hub.
    Raises `SourceError`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted: dict[str, Any] = {"allow_patterns": _WANTED, "ignore_patterns": _UNWANTED}
    try:
        return Path(snapshot_download(repo, local_files_only=True, **wanted))
    except LocalEntryNotFoundError:
        pass  # also raised for one that an interrupted download left incomplete
    except ValueError as error:
        raise SourceError(f"'{repo}' is not a repository name") from error
    if offline():
        raise SourceError("it is not in the cache and HF_HUB_OFFLINE is set (unset it to fetch it)")
    if not reachable():
        raise SourceError("it is not in the cache and the model hub cannot be reached")
    bars = _forwarding_bars(name, 0, progress)
    try:
        folder = snapshot_download(repo, etag_timeout=_ETAG_TIMEOUT_S, tqdm_class=bars, **wanted)
    except Exception as error:  # the client raises what its transport raises
        raise _failure(error, repo) from error
    return Path(folder)


def _failure(error: Exception, repo: str) -> Exception:
    """Why the hub did not deliver, as one line."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, OSError) and error.errno in LOCAL_ERRNOS:
        return UnpausedError(
            f"the download cannot be stored ({error.strerror}): make room, or move the caches "
            "with UNPAUSED_CACHE and HF_HOME"
        )
    if isinstance(error, GatedRepoError):
        return SourceError(f"accept the licence of {repo} on the hub, then run: hf auth login")
    if isinstance(error, RepositoryNotFoundError):
        return SourceError(f"the model hub has no public repository {repo}")
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return SourceError(f"the model hub failed ({first_line})")


def _forwarding_bars(name: str, total_bytes: int, progress: Progress) -> type[tqdm]:
    """A progress bar class for the hub's client that draws nothing and tells `progress`.

    `total_bytes` 0 means: take the totals that the client learns.
    """
    from tqdm.auto import tqdm

    done_bytes = 0

    class ForwardingBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # The client also counts files, and network bytes apart from bytes on disk.
            self._counts = kwargs.get("unit") == "B" and kwargs.get("desc") != "Downloading bytes"
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> None:
            nonlocal done_bytes
            if not self._counts:
                return
            done_bytes += int(n or 0)
            known_bytes = total_bytes or int(self.total or 0)
            # A file that the client starts over counts twice.
            progress(name, min(done_bytes, known_bytes), known_bytes)

    return ForwardingBar
