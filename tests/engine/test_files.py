"""Where files may be put, and that they are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import UnpausedError
from engine.files import check_writable, whole_file


def test_what_can_be_written_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "new.json", tmp_path / "old.json", Path("bare.json")):
        check_writable(path)
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


@pytest.mark.parametrize("name", [".", "folder", "none/a.json", "file/a.json", "/dev/null"])
def test_what_is_no_file_or_has_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UnpausedError, match=f"cannot write {tmp_path / name}: "):
        check_writable(tmp_path / name)


def test_a_link_is_not_replaced(tmp_path: Path) -> None:
    """/dev/stdout is one: redirected to a file it looks like a file, and must stay a link."""
    (tmp_path / "real.json").write_text("{}")
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real.json")
    with pytest.raises(UnpausedError, match=r"cannot write .*link\.json: it is no plain file"):
        check_writable(link)


def test_a_folder_that_is_only_to_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UnpausedError, match="no folder that can be written to"):
        check_writable(tmp_path / "a.json")


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_breaks_off_leaves_what_was_there(fault: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    with (
        pytest.raises((KeyboardInterrupt, UnpausedError)) as raised,
        whole_file(path) as file,
    ):
        file.write(b"half")
        raise fault
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    if isinstance(fault, OSError):
        assert str(raised.value) == f"cannot write {path}: No space left on device"


def test_what_is_written_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    with whole_file(path) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]
