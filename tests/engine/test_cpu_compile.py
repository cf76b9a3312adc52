"""The cache of compiled code: found again, shared, refused, damaged, and cut off by a kill.

With a small function; in the end once with the engine itself.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from engine import cpu_compile
from engine.eager import EagerEngine
from engine.sampling import SamplingParams
from tests.engine.conftest import TinyFactory

ARGUMENTS = (np.zeros(3),)
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240


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


# A process of its own that compiles `fresh()` into argv[1], once it is told to on standard input.
# With argv[2] it dies at that call of os.replace: numba writes files elsewhere and renames them.
_COMPILES = """
import os, sys
from pathlib import Path
import numpy as np
from engine import cpu_compile
from tests.engine.test_cpu_compile import ARGUMENTS, fresh
left = int(sys.argv[2])
rename = os.replace
def replace(*arguments):
    global left
    left -= 1
    if left == 0:
        os._exit(9)
    rename(*arguments)
os.replace = replace
print("ready", flush=True)
sys.stdin.readline()
print(cpu_compile.compiled(fresh(), ARGUMENTS, Path(sys.argv[1]))(np.ones(3)))
"""


def compiling(folder: Path, dies_at: int = 0) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _COMPILES, str(folder), str(dies_at)],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def assert_cached(folder: Path) -> None:
    function = cpu_compile.compiled(fresh(), ARGUMENTS, folder)
    assert function(np.ones(3)) == 4.0
    assert sum(function.stats.cache_hits.values()) == 1


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_process_killed_while_it_writes(tmp_path: Path, dies_at: int) -> None:
    folder = tmp_path / "cpu-1"
    killed = compiling(folder, dies_at)
    killed.communicate("go\n", timeout=LIMIT_S)
    assert killed.returncode == 9
    assert cpu_compile.compiled(fresh(), ARGUMENTS, folder)(np.ones(3)) == 4.0
    assert_cached(folder)


def test_processes_that_compile_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "cpu-1"
    processes = [compiling(folder) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.communicate(timeout=LIMIT_S)[0] == "4.0\n"
        assert process.returncode == 0
    assert_cached(folder)


_DECODES = """
import json, logging, sys
from pathlib import Path
import torch
from engine.cpu import PersistentCpuEngine
from engine.sampling import SamplingParams
from engine.weights import load_model
model = load_model(Path(sys.argv[1]), dtype=torch.float32)
engine = PersistentCpuEngine(model)
run = engine.decode(model.new_cache(), [1, 2, 3], SamplingParams(max_tokens=20))
print(json.dumps([token.id for token in run]))
engine.close()
"""


@pytest.mark.slow
def test_the_engine_s_first_compilation_killed_and_then_done_twice_at_once(
    tiny_of: TinyFactory, tmp_path: Path
) -> None:
    tiny = tiny_of("smollm2")

    def decoding() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _DECODES, str(tiny.folder)],
            cwd=ROOT, env={**os.environ, "UNPAUSED_CACHE": str(tmp_path)},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    killed = decoding()
    assert killed.stderr is not None and "compiling" in killed.stderr.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(3.0)  # in the middle of some twenty seconds
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=LIMIT_S)

    run = EagerEngine(tiny.model).decode(
        tiny.model.new_cache(), [1, 2, 3], SamplingParams(max_tokens=20)
    )
    expected = [token.id for token in run]
    both = [decoding(), decoding()]
    for process in both:
        out, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0 and json.loads(out) == expected, said
    out, said = decoding().communicate(timeout=LIMIT_S)
    assert json.loads(out) == expected and "compiling" not in said, "found compiled"
