"""Other programs: what they say, and that nothing they do is a fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine import doctor, programs


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((sys.executable, "-c", "print('  a line ')"), "a line"),
        ((sys.executable, "-c", "print('failed'); raise SystemExit(1)"), ""),
        (("/no/such/program", "--version"), ""),
    ],
)
def test_output_or_nothing(command: tuple[str, ...], said: str) -> None:
    assert programs.output_of(*command) == said


def test_a_program_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_TIMEOUT_S", 0.2)
    assert programs.output_of(sys.executable, "-c", "import time; time.sleep(60)") == ""


def test_the_doctor_tells_of_a_gpu_that_torch_cannot_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "nvidia-smi"
    own.write_text('#!/bin/sh\necho "GPU 0: NVIDIA H200"\necho "GPU 1: NVIDIA H200"\n')
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = next(check for check in doctor.report() if check.name == "gpu")
    assert found.detail == "GPU 0: NVIDIA H200, which this torch cannot use" and found.remedy
