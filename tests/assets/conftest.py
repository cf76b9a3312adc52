"""A world without a network for every test of the resolver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.assets.fakes import FakeWorld


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    """An empty world whose environment this process has taken on."""
    world = FakeWorld(tmp_path)
    world.index.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "UNPAUSED_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    return world
