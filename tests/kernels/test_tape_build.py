"""The tape kernel compiles for every generation it is for, without a GPU, and is kept on disk."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.shapes import SHAPES
from engine.errors import UnpausedError
from kernels import tape_build as build
from kernels.tape_plan import static_bytes
from kernels.tape_probe import COPY_BYTES

needs_nvrtc = pytest.mark.skipif(
    build.nvrtc_reason() is not None, reason=f"no NVRTC: {build.nvrtc_reason()}"
)


@needs_nvrtc
@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0)])
def test_compiles_for_every_generation(capability: tuple[int, int]) -> None:
    code = build.compile_cubin(build.macros(SHAPES["smollm2-135m"]), build.architecture(capability))
    assert code.startswith(b"\x7fELF")


@needs_nvrtc
@pytest.mark.parametrize("capability", [(9, 0), (12, 0)])
def test_the_bandwidth_probe_compiles(capability: tuple[int, int]) -> None:
    macros = {"COPY_BYTES": str(COPY_BYTES)}
    code = build.compile_cubin(macros, build.architecture(capability), "tape_probe.cu")
    assert code.startswith(b"\x7fELF")


@needs_nvrtc
def test_the_measuring_mode_compiles_and_is_compiled_out() -> None:
    config = SHAPES["qwen3-0.6b"]
    plain = build.compile_cubin(build.macros(config), "sm_90a")
    measured = build.compile_cubin(build.macros(config, measure=True), "sm_90a")
    assert len(measured) > len(plain)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_verifying_eight_tokens_takes_no_more_than_a_block_has(arch: str) -> None:
    """By the assembler's own report: registers, what is spilled, static shared memory."""
    report = report_of(build.macros(SHAPES["llama-3.2-1b"], 8, speculate=True), arch)
    found = re.search(r"(\d+) bytes spill stores.*?Used (\d+) registers.*?(\d+) bytes smem", report)
    assert found, report
    spilled, registers, shared = map(int, found.groups())
    assert spilled == 0 and registers <= 65536 // 384 and shared <= static_bytes(8)


@needs_nvrtc
def test_verifying_compiles_for_the_latest_generation() -> None:
    """It has half the shared memory, and so narrower passes."""
    macros = build.macros(SHAPES["smollm2-135m"], 4, speculate=True)
    assert build.compile_cubin(macros, "sm_120a").startswith(b"\x7fELF")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_without_drafts_nothing_of_them_is_in_the_source() -> None:
    """The text that the compiler sees; with them it sees them."""
    names = {"Pace", "Drafts", "DraftCounts", "meeting", "begun_pass", "tags", "context", "costs"}
    for speculate in (False, True):
        macros = build.macros(SHAPES["llama-3.2-1b"], 8, speculate=speculate)
        command = ["g++", "-x", "c++", "-E", "-P", *(f"-D{k}={v}" for k, v in macros.items())]
        kernels = Path(build.__file__).parent
        done = subprocess.run(
            [*command, f"-I{kernels}", str(kernels / "tape.cu")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        seen = names & set(re.findall(r"\w+", done.stdout))
        assert seen == (names if speculate else set())


def report_of(macros: dict[str, str], arch: str) -> str:
    """What the assembler says of the kernel, in one line."""
    from cuda.core import Program, ProgramOptions

    kernels, log = Path(build.__file__).parent, io.StringIO()
    options = ProgramOptions(
        arch=arch, std="c++17", include_path=str(kernels), define_macro=list(macros.items()),
        ptxas_options=["-v"],
    )  # fmt: skip
    Program((kernels / "tape.cu").read_text(), "c++", options).compile("cubin", logs=log)
    return " ".join(log.getvalue().split())


@needs_nvrtc
def test_what_is_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNPAUSED_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "compile_cubin", lambda defines, arch, entry: b"\x7fELF first")
    assert build.compiled({"LAYERS": "1"}, "sm_90a", "H200") == b"\x7fELF first"
    monkeypatch.setattr(build, "compile_cubin", lambda defines, arch, entry: b"\x7fELF second")
    assert build.compiled({"LAYERS": "1"}, "sm_90a", "H200") == b"\x7fELF first"
    for other in (({"LAYERS": "2"}, "sm_90a", "H200"), ({"LAYERS": "1"}, "sm_100a", "H200"),
                  ({"LAYERS": "1"}, "sm_90a", "H100")):  # fmt: skip
        assert build.compiled(*other) == b"\x7fELF second"


@needs_nvrtc
def test_a_damaged_file_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNPAUSED_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "compile_cubin", lambda defines, arch, entry: b"\x7fELF code")
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
