"""The cache of compiled code: found again, shared, refused, damaged. With a small function."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from engine import cpu_compile

ARGUMENTS = (np.zeros(3),)


def fresh() -> Any:
    """A new dispatcher of the same function, as a new process would have."""
    return njit(_total)


def _total(values: np.ndarray) -> float:
    return values.sum() + 1.0


def test_the_second_start_finds_the_first_one_s_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cpu-1"
    with caplog.at_level(logging.WARNING):
        assert cpu_compile.compiled(fresh(), ARGUMENTS, folder)(np.ones(3)) == 4.0
    assert "once for this machine" in caplog.text
    caplog.clear()
    again = cpu_compile.compiled(fresh(), ARGUMENTS, folder)
    assert again(np.ones(3)) == 4.0
    assert sum(again.stats.cache_hits.values()) == 1
    assert not caplog.text


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    function = cpu_compile.compiled(fresh(), ARGUMENTS, tmp_path / "file" / "cpu-1")
    assert function(np.ones(3)) == 4.0
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("damage", [b"", b"not a pickle", pickle.dumps("0.0")])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_damaged_files_are_replaced(tmp_path: Path, damage: bytes, suffix: str) -> None:
    folder = tmp_path / "cpu-1"
    cpu_compile.compiled(fresh(), ARGUMENTS, folder)
    files = list(folder.rglob(f"*.{suffix}"))
    assert files
    for path in files:
        path.write_bytes(damage)
    assert cpu_compile.compiled(fresh(), ARGUMENTS, folder)(np.ones(3)) == 4.0


def test_the_folder_depends_on_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNPAUSED_CACHE", str(tmp_path))
    before = cpu_compile.cache_folder()
    assert before == cpu_compile.cache_folder()
    assert tmp_path in before.parents
    monkeypatch.setattr(cpu_compile, "_SOURCES", ("kernels/cpu_vector.py",))
    assert cpu_compile.cache_folder() != before


def test_old_versions_do_not_pile_up(tmp_path: Path) -> None:
    for version in range(10):
        cpu_compile.compiled(fresh(), ARGUMENTS, tmp_path / f"cpu-{version}")
    left = {path.name for path in tmp_path.iterdir()}
    assert "cpu-9" in left
    assert len(left) == 5
