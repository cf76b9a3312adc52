"""Waits between the programs of a resident grid, bounded in time.

One thread of each program arrives with a release and polls with an acquire (relaxed polls and one
fence in the end took 400 cycles more); the rest of the program waits at a block barrier on either
side, which carries the order over to every thread. What is to be read ahead is asked for between
`grid_arrive` and `grid_wait`: a release comes after all that its thread has asked for before.

A wait that takes too long names its place once, for the host and for the other programs, and every
wait from then on lets everybody through, so that the kernel ends by itself.
"""

import triton
import triton.language as tl

LINE = tl.constexpr(32)  # int32 words of a cache line: every word below has one of its own
ARRIVED, FAULT = tl.constexpr(0), tl.constexpr(32)
HALT = tl.constexpr(2 * 32)  # whether this token is the last because the host asked
HEADS_FROM = tl.constexpr(3 * 32)  # a word for each key head: parts of attention done


def sync_words(kv_heads: int) -> int:
    """Words (int32) of `sync_ptr`, to be zeroed before each launch."""
    return (3 + kv_heads) * 32


# $1 word
_ARRIVE = tl.constexpr("""{
    .reg .pred %other;
    .reg .u32 %thread;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %other, %thread, 0;
    @%other bra LEAVE;
    red.release.gpu.global.add.u32 [$1], 1;
    LEAVE:
    mov.u32 $0, 0;
}""")

# $1 word, $2 its goal, $3 fault flag, $4 timeout in ns, $5 fault word of the host, $6 place
_WAIT = tl.constexpr("""{
    .reg .pred %done, %more, %other;
    .reg .u32 %thread, %seen, %gap, %polls, %flag;
    .reg .u64 %now, %limit;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %other, %thread, 0;
    @%other bra LEAVE;
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
    ld.relaxed.gpu.global.u32 %flag, [$3];
    setp.ne.u32 %done, %flag, 0;
    @%done bra LEAVE;
    mov.u64 %now, %globaltimer;
    setp.eq.u64 %other, %limit, 0;
    @%other add.u64 %limit, %now, $4;
    setp.lt.u64 %more, %now, %limit;
    @%more bra POLL;
    atom.relaxed.gpu.global.cas.b32 %flag, [$3], 0, 1;
    setp.ne.u32 %done, %flag, 0;
    @%done bra LEAVE;
    st.relaxed.sys.global.u64 [$5], $6;
    LEAVE:
    mov.u32 $0, 0;
}""")


@triton.jit
def place_of(stage, layer, token):
    """int64, as `engine.mailbox.pack_fault`."""
    return ((token.to(tl.int64) << 16) | layer) << 8 | (stage + 1)


@triton.jit
def grid_arrive(sync_ptr, DEVICE: tl.constexpr):
    """This program's writes are to be visible to whoever returns from `grid_wait`."""
    _arrive(sync_ptr + ARRIVED, DEVICE)


@triton.jit
def grid_wait(
    sync_ptr,  # int32 [sync_words]
    rounds,  # int32: barriers there have been, this one included
    timeout_ns,  # int64
    fault_ptr,  # int64 in pinned host memory
    place,  # int64: what to write there when the wait takes too long
    GRID: tl.constexpr,
    DEVICE: tl.constexpr,  # False under the interpreter: no clock and no assembly
):
    """Return when all programs have arrived, or a fault is known."""
    _wait(sync_ptr + ARRIVED, GRID * rounds, sync_ptr, timeout_ns, fault_ptr, place, DEVICE)


@triton.jit
def grid_barrier(
    sync_ptr, rounds, timeout_ns, fault_ptr, place, GRID: tl.constexpr, DEVICE: tl.constexpr
):
    """Arrive and wait at once, where nothing can be asked for in between."""
    grid_arrive(sync_ptr, DEVICE)
    grid_wait(sync_ptr, rounds, timeout_ns, fault_ptr, place, GRID, DEVICE)


@triton.jit
def head_barrier(
    sync_ptr, kv_head, rounds, timeout_ns, fault_ptr, place,
    PROGRAMS: tl.constexpr,  # that work on one key head
    DEVICE: tl.constexpr,
):  # fmt: skip
    """As `grid_barrier`, among the programs of one key head."""
    word_ptr = sync_ptr + HEADS_FROM + kv_head * LINE
    _arrive(word_ptr, DEVICE)
    _wait(word_ptr, PROGRAMS * rounds, sync_ptr, timeout_ns, fault_ptr, place, DEVICE)


@triton.jit
def _arrive(word_ptr, DEVICE: tl.constexpr):
    """Count up `word_ptr` once all the program's threads have come here."""
    if DEVICE:
        tl.debug_barrier()
        tl.inline_asm_elementwise(
            _ARRIVE, "=r,l", [word_ptr.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        tl.atomic_add(word_ptr, 1)


@triton.jit
def _wait(
    word_ptr, goal, sync_ptr, timeout_ns, fault_ptr, place, DEVICE: tl.constexpr,
    POLLS: tl.constexpr = 1000,
):  # fmt: skip
    """Wait until `word_ptr` is `goal`; without a clock, for so many polls."""
    if DEVICE:
        tl.inline_asm_elementwise(
            _WAIT, "=r,l,r,l,l,l,l",
            [
                word_ptr.to(tl.int64), goal, (sync_ptr + FAULT).to(tl.int64), timeout_ns,
                fault_ptr.to(tl.int64), place,
            ],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        tl.debug_barrier()
    else:
        arrived = tl.load(word_ptr, volatile=True)
        polls = 0
        while (arrived < goal) & (polls < POLLS):
            arrived = tl.load(word_ptr, volatile=True)
            polls += 1
        if (arrived < goal) & (tl.load(sync_ptr + FAULT) == 0):
            tl.store(sync_ptr + FAULT, 1)
            tl.store(fault_ptr, place)
