"""The CUDA driver's calls that the kernels compiled through NVRTC need."""

from __future__ import annotations

from typing import Any

from engine.errors import UnpausedError
from kernels import tape_build as build


def call(name: str, *arguments: Any) -> Any:
    """What the driver's function `name` gives, or `UnpausedError` with what it says."""
    from cuda.bindings import driver

    error, *results = getattr(driver, name)(*arguments)
    if int(error):
        raise UnpausedError(f"the CUDA driver refused the tape kernel: {name} says {error.name}")
    return results[0] if len(results) == 1 else results


def load(code: bytes, name: str, threads: int, dynamic_bytes: int) -> Any:
    """Function `name` of a cubin, allowed its shared memory, and known to fit."""
    from cuda.bindings import driver

    try:
        module = call("cuModuleLoadData", code)
    except UnpausedError as error:
        version = call("cuDriverGetVersion")
        raise UnpausedError(
            f"{error}; the driver knows CUDA {version // 1000}.{version % 1000 // 10} and NVRTC is "
            f"{'.'.join(map(str, build.nvrtc_version()))}: use a driver at least as new"
        ) from error
    function = call("cuModuleGetFunction", module, name.encode())
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call("cuFuncSetAttribute", function, attribute, dynamic_bytes)
    fitting = call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, dynamic_bytes)
    if fitting < 1:
        raise UnpausedError(
            f"a block of the tape kernel ({threads} threads, {dynamic_bytes} bytes of shared "
            "memory) does not fit on a multiprocessor of this GPU: use another engine"
        )
    return function
