"""python -m assets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from assets.__main__ import main
from assets.console import ConsoleProgress
from tests.assets.fakes import FakeWorld


@pytest.fixture(autouse=True)
def own_cache(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's manifest over an empty cache and an empty index."""
    monkeypatch.setenv("UNPAUSED_CACHE", str(world.cache))


def test_list_shows_every_name_and_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name in ("smollm2-135m-instruct", "whisper-base", "joe-us-medium", "qwen3-0.6b"):
        assert name in out
    assert "to fetch" in out and "cached" not in out


@pytest.mark.parametrize("arguments", [[], ["bogus"], ["list", "--all"]])
def test_a_wrong_command_line_is_one_line_too(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert left.value.code == 2 and line.startswith("unpaused: ") and line.endswith("--help)")


def test_faults_are_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "nonsense"]) == 2
    assert main(["fetch"]) == 2  # the index is empty
    errors = capsys.readouterr().err.splitlines()
    assert "unknown weights 'nonsense'" in errors[0]
    assert errors[-1].startswith("unpaused: smollm2-135m-instruct is not in the cache")


def test_a_reader_that_leaves_early_is_no_fault(world: FakeWorld) -> None:
    arguments = [sys.executable, "-m", "assets", "list"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_progress_in_a_log_is_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleProgress() as progress:
        for done in range(0, 2_000_001, 1000):
            progress("model", done, 2_000_000)
        progress("unknown size", 5, 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "model: 0% (0 of 2 MB)" and lines[-1] == "model: 100% (2 of 2 MB)"
    assert len(lines) == 5
