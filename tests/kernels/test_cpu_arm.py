"""The kernels on ARM64 processors, emulated: one with the integer dot product, one without."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from numba.core.registry import cpu_target

from kernels.cpu_emit import target_features
from kernels.cpu_host import has_dot_product
from tests.kernels.test_cpu_targets import CHOSEN

ROOT = Path(__file__).resolve().parents[2]
EMULATED = Path(os.environ.get("UNPAUSED_ARM64", ROOT / ".arm64"))
LIMIT_S = 600
arm_only = pytest.mark.skipif(platform.machine() != "aarch64", reason="this is no ARM64 Linux")


def emulate(cpu: str, *arguments: str) -> str:
    """What pytest says of `arguments` on an emulated `cpu`."""
    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("nothing to emulate: this is an ARM64 machine")
    if not (shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")):
        pytest.skip("no qemu-aarch64: apt install qemu-user-static")
    if not EMULATED.is_dir():
        pytest.skip(f"no ARM64 Python in {EMULATED}: tests/arm64.sh fetches one")
    done = subprocess.run(
        [ROOT / "tests/arm64.sh", cpu, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("cpu", ["neoverse-n1", "a64fx"])
def test_results_are_the_same_on(cpu: str) -> None:
    here = Path(__file__).relative_to(ROOT)
    files = [f"tests/kernels/test_cpu_{name}.py" for name in ("blocks", "vector", "exchange")]
    said = emulate(cpu, str(here), *files, "-k", f"{CHOSEN} or item or declared")
    assert "passed" in said


@arm_only
def test_the_dot_product_is_declared_where_the_processor_has_it() -> None:
    flags = Path("/proc/cpuinfo").read_text("ascii", errors="replace").split()
    if "asimd" in flags:  # an emulator may show its host's file
        assert has_dot_product() == ("asimddp" in flags)
    declared = "dotprod" in target_features(cpu_target.target_context)
    assert declared == has_dot_product()
