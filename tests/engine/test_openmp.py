"""OpenMP's threads sleep in the app, and wait as they do everywhere where others are measured."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_POLICY = "OMP_WAIT_POLICY"
_PROGRAM = (
    "import os, sys\n"
    "import app, engine\n"
    "assert 'torch' not in sys.modules, 'OpenMP has read its policy'\n"
    "print(os.environ.get('OMP_WAIT_POLICY'))\n"
    "from benchmarks import options\n"
    "from benchmarks import bench\n"
    "bench.run = lambda _: print(os.environ.get('OMP_WAIT_POLICY')) or 0\n"
    "app.main(['bench'])\n"
)


@pytest.mark.parametrize(("given", "app", "bench"), [(None, "PASSIVE", "None"),
                                                     ("ACTIVE", "ACTIVE", "ACTIVE")])  # fmt: skip
def test_the_policy_is_the_apps_own_and_not_the_benchs(
    given: str | None, app: str, bench: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != _POLICY}
    if given:
        environment[_POLICY] = given
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == [app, bench], done.stderr
