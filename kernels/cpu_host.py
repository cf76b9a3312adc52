"""What the processor at hand can do beyond what LLVM says of it: ARM's integer dot product.

LLVM does not list it for processors that run Linux, and without its name in the list of features
no code may use it. The list is read when numba compiles its first function, so every module that
compiles anything has `kernel` from here.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from contextlib import suppress

import numba
from llvmlite import binding

_AT_HWCAP, _HWCAP_ASIMDDP = 16, 1 << 20  # Linux: asm/auxvec.h and asm/hwcap.h of arm64


def has_dot_product() -> bool:
    """Whether this is an ARM64 processor with SDOT and UDOT, as the system tells it."""
    if platform.machine() not in ("aarch64", "arm64"):
        return False
    with suppress(OSError, AttributeError):
        system = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return _sysctl(system, b"hw.optional.arm.FEAT_DotProd") == 1
        system.getauxval.argtypes, system.getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
        return bool(system.getauxval(_AT_HWCAP) & _HWCAP_ASIMDDP)
    return False


def _sysctl(system: ctypes.CDLL, name: bytes) -> int:
    """An int among macOS's facts about the hardware; 0 where there is no such fact."""
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    system.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return value.value


def _declare_dot_product() -> None:
    """Add it to the features that numba compiles for, unless the user has named those."""
    if numba.config.CPU_FEATURES is None and has_dot_product():
        features = binding.get_host_cpu_features()
        features["dotprod"] = True
        numba.config.CPU_FEATURES = features.flatten()


_declare_dot_product()

# Compiled code of the engine. It owns no array and makes none, so none is counted: counts are words
# that all threads share, and each call would write every array's twice.
_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}
kernel = numba.njit(forceinline=False, **_OPTIONS)  # said: left open, it is as for the caller
# The same, compiled into its caller: what takes all shared arrays would be called with 200 words.
part = numba.njit(forceinline=True, **_OPTIONS)
