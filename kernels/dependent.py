"""Programmatic dependent launch: a kernel starts while the one before it still runs.

Everything that touches data of an earlier kernel comes after `wait_for_previous`; what comes
before it may read weights only, which nobody writes. Every kernel waits, so completion is
transitive. `ON` is False where the GPU (below sm_90), the launch or the interpreter lacks it.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def let_next_start(ON: tl.constexpr):
    """Allow the next kernel's programs onto free SMs from now on."""
    if ON:
        cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(ON: tl.constexpr):
    """Return once the kernel before this one has ended and its writes are visible."""
    if ON:
        cuda.gdc_wait()


@triton.jit
def prefetch_to_l2(pointer, COUNT: tl.constexpr, ON: tl.constexpr):
    """Ask for `COUNT` elements (a multiple of 16 bytes) from an aligned address; one thread asks.

    From sm_90 on, as dependent launch is.
    """
    if ON:
        SIZE_BYTES: tl.constexpr = COUNT * pointer.dtype.element_ty.primitive_bitwidth // 8
        tl.inline_asm_elementwise(
            """{
            .reg .pred %first;
            .reg .u32 %thread;
            mov.u32 %thread, %tid.x;
            setp.eq.u32 %first, %thread, 0;
            @%first cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,l,r",
            [pointer.to(tl.int64), SIZE_BYTES],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
