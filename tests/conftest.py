"""Fixtures that more than one part's tests use: real weights and a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

# Before anything imports the hub's client or Gradio: both read these once. Tests never ask the
# hub; weights that are not cached come out of their wheels.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import pytest

from assets.resolver import resolve
from engine.doctor import find_browser
from engine.errors import UnpausedError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked gpu where there is none."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default language model: a .gguf file."""
    return _weights("llm")


@pytest.fixture(scope="session")
def whisper_dir() -> Path:
    """The default speech-to-text model: a CTranslate2 folder."""
    return _weights("stt")


@pytest.fixture(scope="session")
def voice_path() -> Path:
    """The default voice: a .onnx file with its .onnx.json beside it."""
    return _weights("voice")


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """An executable of the Chromium family."""
    found = find_browser()
    if found is None:
        _unavailable("no browser: install chromium or set UNPAUSED_CHROMIUM to its path")
    return found


def _weights(role: str) -> Path:
    try:
        return resolve(role)
    except UnpausedError as error:
        _unavailable(str(error))


def _unavailable(reason: str) -> NoReturn:
    """Skip at a desk; in CI a test that cannot run has failed."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
