"""A barrier over all programs of a resident grid, bounded in time.

One thread of each program arrives with a release and polls with an acquire; the rest of the
program waits at a block barrier on either side, which carries the order over to every thread. A
wait that takes too long names its place once, for the host and for the other programs, and every
barrier from then on lets everybody through, so that the kernel ends by itself.
"""

import triton
import triton.language as tl

# Words (int32) of `sync_ptr`, in cache lines of their own.
ARRIVED = tl.constexpr(0)
FAULT = tl.constexpr(32)
HALT = tl.constexpr(64)  # whether this token is the last because the host asked
SYNC_WORDS = 96

_ARRIVE_AND_WAIT = tl.constexpr("""{
    .reg .pred %done, %more, %first;
    .reg .u32 %thread, %seen, %gap, %polls, %flag;
    .reg .u64 %now, %limit;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %first, %thread, 0;
    @%first bra LEAVE;
    red.release.gpu.global.add.u32 [$1], 1;
    mov.u32 %polls, 0;
    mov.u64 %limit, 0;
    POLL:
    ld.acquire.gpu.global.u32 %seen, [$1];
    sub.u32 %gap, %seen, $2;
    setp.ge.s32 %done, %gap, 0;
    @%done bra LEAVE;
    add.u32 %polls, %polls, 1;
    and.b32 %flag, %polls, 255;
    setp.ne.u32 %more, %flag, 0;
    @%more bra POLL;
    ld.relaxed.gpu.global.u32 %flag, [$1+128];
    setp.ne.u32 %done, %flag, 0;
    @%done bra LEAVE;
    mov.u64 %now, %globaltimer;
    setp.eq.u64 %first, %limit, 0;
    @%first add.u64 %limit, %now, $3;
    setp.lt.u64 %more, %now, %limit;
    @%more bra POLL;
    atom.relaxed.gpu.global.cas.b32 %flag, [$1+128], 0, 1;
    setp.ne.u32 %done, %flag, 0;
    @%done bra LEAVE;
    st.relaxed.sys.global.u64 [$4], $5;
    LEAVE:
    mov.u32 $0, 0;
}""")


@triton.jit
def place_of(stage, layer, token):
    """int64, as `engine.mailbox.pack_fault`."""
    return ((token.to(tl.int64) << 16) | layer) << 8 | (stage + 1)


@triton.jit
def grid_barrier(
    sync_ptr,  # int32 [SYNC_WORDS], zeroed before the launch
    target,  # arrivals there will have been: programs times barriers passed so far
    timeout_ns,  # int64
    fault_ptr,  # int64 in pinned host memory
    place,  # int64: what to write there when the wait takes too long
    DEVICE: tl.constexpr,  # False under the interpreter: no clock and no assembly
    POLLS: tl.constexpr = 1000,  # before giving up where there is no clock
):
    """Return when all programs have arrived, or a fault is known. Writes before it are visible."""
    if DEVICE:
        tl.debug_barrier()
        tl.inline_asm_elementwise(
            _ARRIVE_AND_WAIT, "=r,l,r,l,l,l",
            [sync_ptr.to(tl.int64), target, timeout_ns, fault_ptr.to(tl.int64), place],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        tl.debug_barrier()
    else:
        arrived = tl.atomic_add(sync_ptr + ARRIVED, 1) + 1
        polls = 0
        while (arrived < target) & (polls < POLLS):
            arrived = tl.load(sync_ptr + ARRIVED, volatile=True)
            polls += 1
        if (arrived < target) & (tl.load(sync_ptr + FAULT) == 0):
            tl.store(sync_ptr + FAULT, 1)
            tl.store(fault_ptr, place)
