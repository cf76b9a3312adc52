"""The tape kernel compiles for every generation it is for, without a GPU, and is kept on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.shapes import SHAPES
from engine.errors import UnpausedError
from kernels import tape_build as build

needs_nvrtc = pytest.mark.skipif(
    build.nvrtc_reason() is not None, reason=f"no NVRTC: {build.nvrtc_reason()}"
)


@needs_nvrtc
@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0)])
def test_compiles_for_every_generation(capability: tuple[int, int]) -> None:
    code = build.compile_cubin(build.macros(SHAPES["smollm2-135m"]), build.architecture(capability))
    assert code.startswith(b"\x7fELF")


@needs_nvrtc
def test_the_measuring_mode_compiles_and_is_compiled_out() -> None:
    config = SHAPES["qwen3-0.6b"]
    plain = build.compile_cubin(build.macros(config), "sm_90a")
    measured = build.compile_cubin(build.macros(config, measure=True), "sm_90a")
    assert len(measured) > len(plain)


@needs_nvrtc
def test_what_is_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNPAUSED_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "compile_cubin", lambda defines, arch: b"\x7fELF first")
    assert build.compiled({"LAYERS": "1"}, "sm_90a", "H200") == b"\x7fELF first"
    monkeypatch.setattr(build, "compile_cubin", lambda defines, arch: b"\x7fELF second")
    assert build.compiled({"LAYERS": "1"}, "sm_90a", "H200") == b"\x7fELF first"
    for other in (({"LAYERS": "2"}, "sm_90a", "H200"), ({"LAYERS": "1"}, "sm_100a", "H200"),
                  ({"LAYERS": "1"}, "sm_90a", "H100")):  # fmt: skip
        assert build.compiled(*other) == b"\x7fELF second"


@needs_nvrtc
def test_a_damaged_file_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNPAUSED_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "compile_cubin", lambda defines, arch: b"\x7fELF code")
    build.compiled({}, "sm_90a", "H200")
    (held,) = (tmp_path / "compiled").iterdir()
    held.write_bytes(b"half a fi")
    assert build.compiled({}, "sm_90a", "H200") == b"\x7fELF code"


@needs_nvrtc
def test_a_compiler_error_is_one_line() -> None:
    with pytest.raises(UnpausedError, match="NVRTC cannot compile the tape kernel") as caught:
        build.compile_cubin({"LAYERS": "}"}, "sm_90a")
    assert "\n" not in str(caught.value)


def test_an_old_nvrtc_is_told_with_the_version_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(build, "nvrtc_version", lambda: (12, 4))
    assert build.nvrtc_reason() == "NVRTC 12.4 is too old: 12.8 or newer is needed"
