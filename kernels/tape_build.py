"""Compiling the tape kernel for a model and a GPU through NVRTC, once, and keeping it on disk.

No toolkit is needed: cuda-core finds NVRTC in the packages that CUDA builds of PyTorch bring.
Shapes are macros, so each model's shape has a file of its own; it is named after everything it
depends on, and an edit or another version gets another name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from assets.cache import default_root
from engine.errors import UnpausedError
from engine.models.base import ModelConfig
from kernels.tape_plan import down_columns, folds, kv_slots

MIN_NVRTC = (12, 8)  # knows sm_100a and sm_120a
MIN_CAPABILITY = (9, 0)  # bulk copies that complete on a barrier
_FOLDER = Path(__file__).resolve().parent
ENTRY = "tape.cu"

_log = logging.getLogger(__name__)


def nvrtc_reason() -> str | None:
    """Why the kernel cannot be compiled here, in one line, or None."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        return "cuda-core is not installed: pip install -e '.[gpu]'"
    try:
        version = nvrtc_version()
    except Exception as error:  # the binding raises what it likes where the library is missing
        return f"NVRTC cannot be loaded ({str(error).splitlines()[0]}): pip install -e '.[gpu]'"
    if version < MIN_NVRTC:
        return f"NVRTC {version[0]}.{version[1]} is too old: 12.8 or newer is needed"
    return None


def nvrtc_version() -> tuple[int, int]:
    """Of the NVRTC that is found here."""
    from cuda.bindings import nvrtc

    error, major, minor = nvrtc.nvrtcVersion()
    if int(error):
        raise RuntimeError(f"nvrtcVersion failed with {error}")
    return major, minor


def architecture(capability: tuple[int, int]) -> str:
    """The target for a GPU; "a" for what only that generation has (register reallocation)."""
    return f"sm_{capability[0]}{capability[1]}a"


def macros(
    config: ModelConfig, width: int = 1, measure: bool = False, speculate: bool = False
) -> dict[str, str]:
    """The shape and the widest pass as the kernel's macros.

    Without `measure` and `speculate` nothing of either is in what is compiled.
    """
    c, modes = config, {"MEASURE": measure, "SPECULATE": speculate}
    found = {
        "LAYERS": str(c.layers),
        "HIDDEN": str(c.hidden),
        "INTERMEDIATE": str(c.intermediate),
        "HEADS": str(c.heads),
        "KV_HEADS": str(c.kv_heads),
        "HEAD_DIM": str(c.head_dim),
        "VOCAB": str(c.vocab),
        "RMS_EPS": f"{c.rms_eps:.9e}f",
        "ATTENTION_SCALE": f"{c.head_dim**-0.5:.9e}f",
        "QK_NORM": str(int(c.qk_norm)),
        "QKV_BIAS": str(int(c.qkv_bias)),
        "WIDTH": str(width),
        "DOWN_COLUMNS": str(down_columns(c)),
        "KV_SLOTS": str(kv_slots(c, width)),
        "FOLD": str(int(folds(c, width))),
    }
    return found | {name: "1" for name, wanted in modes.items() if wanted}


def compiled(defines: Mapping[str, str], arch: str, gpu: str, entry: str = ENTRY) -> bytes:
    """The cubin of `entry`, from disk where possible. `UnpausedError` when NVRTC refuses."""
    path = _path(defines, arch, gpu, entry)
    with suppress(OSError):
        held = path.read_bytes()
        if held.startswith(b"\x7fELF"):
            return held
    code = compile_cubin(defines, arch, entry)
    _keep(path, code)
    return code


def compile_cubin(defines: Mapping[str, str], arch: str, entry: str = ENTRY) -> bytes:
    """Compile now; some seconds."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        arch=arch,
        std="c++17",
        include_path=str(_FOLDER),
        define_macro=list(defines.items()),
    )
    try:
        program = Program((_FOLDER / entry).read_text(encoding="utf-8"), "c++", options)
        code = program.compile("cubin").code
    except Exception as error:  # NVRTCError has no public home that all versions share
        lines = [line for line in str(error).splitlines() if ": error" in line]
        raise UnpausedError(
            f"NVRTC cannot compile the tape kernel for {arch}: {(lines or [str(error)])[0].strip()}"
        ) from error
    return bytes(code)


def _path(defines: Mapping[str, str], arch: str, gpu: str, entry: str) -> Path:
    known = (sorted(defines.items()), arch, gpu, nvrtc_version(), entry)
    digest = hashlib.sha256(repr(known).encode())
    for source in sorted(_FOLDER.glob("tape*.cu*")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return default_root() / "compiled" / f"tape-{arch}-{digest.hexdigest()[:16]}.cubin"


def _keep(path: Path, code: bytes) -> None:
    """Write it under another name first: processes that compile at once do not disturb others."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        os.replace(name, path)
    except OSError as error:
        _log.warning("%s cannot be kept (%s): compiling in every process", path, error)
