"""The doctor's findings on machines that lack something."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from engine import doctor


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that does not exist yet."""
    monkeypatch.setenv("UNPAUSED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def find(name: str) -> doctor.Check:
    return next(check for check in doctor.report() if check.name == name)


def test_report_covers_the_machine_the_weights_and_the_engines() -> None:
    names = [check.name for check in doctor.report()]
    for name in ("python", "torch", "gpu", "cpu", "memory", "cache", "weights llm", "portaudio"):
        assert name in names
    assert "engine eager" in names


def test_weights_to_fetch_are_no_fault_but_have_a_remedy() -> None:
    check = find("weights voice")
    assert check.ok is None and "python -m assets fetch joe-us-medium" in check.remedy


@pytest.mark.parametrize("below", ["", "folder/cache"])
def test_a_file_where_the_cache_should_be(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("UNPAUSED_CACHE", str(tmp_path / "file" / below))
    check = find("cache")
    assert check.ok is False and "UNPAUSED_CACHE" in check.remedy
    assert str(tmp_path / "file") in check.detail


def test_missing_portaudio_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What sounddevice does on import where the library is absent.
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    check = find("portaudio")
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    assert check.ok is None and "libportaudio2" in check.remedy


def test_a_broken_torch_is_told_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    check = find("torch")
    assert check.ok is False and check.remedy


def test_the_json_report_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.run(as_json=True)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["ok"] is (code == 0)
    assert {"name", "ok", "detail", "remedy"} == set(report["checks"][0])


def test_the_printed_report_shows_each_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.run()
    out = capsys.readouterr().out
    assert "-> fetched on first use" in out


def test_browser_is_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "my-browser"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("UNPAUSED_CHROMIUM", str(own))
    assert doctor.find_browser() == str(own)
    monkeypatch.delenv("UNPAUSED_CHROMIUM")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert doctor.find_browser() is None
