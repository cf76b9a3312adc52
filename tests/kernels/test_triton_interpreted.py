"""Runs the Triton kernels' tests on machines without a GPU, through Triton's interpreter.

In a process of its own: Triton decides at import whether it interprets, and other tests are not to
meet a Triton that does.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FILES = (
    "tests/kernels/test_triton_stages.py",
    "tests/kernels/test_triton_streams.py",
    "tests/kernels/test_triton_sampling.py",
    "tests/kernels/test_triton_columns.py",
    "tests/kernels/test_triton_drafts.py",
    "tests/engine/test_triton_engine.py",
    "tests/engine/test_triton_speculation.py",
    "tests/engine/test_persistent_triton.py",
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the same tests run on the GPU itself")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is that process")
def test_kernels_interpreted() -> None:
    if importlib.util.find_spec("triton") is None:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail("Triton is not installed: pip install -e '.[test]'", pytrace=False)
        pytest.skip("Triton is not installed: pip install -e '.[test]'")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=1200,  # interpreted kernels, on a machine that may be busy
    )
    summary = done.stdout.strip().splitlines()[-1:]
    print(*summary)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in str(summary) and "failed" not in str(summary)
