"""Waking the host, and being woken by it, through pipes: no polling on either side."""

from __future__ import annotations

import numpy as np

from engine import mailbox as mb
from kernels.cpu_atomics import load_acquire, pause, posix_read, posix_write, usleep
from kernels.cpu_host import kernel

_IDLE_SPINS = 2_000  # about 50 us: a conversation's next run seldom comes sooner
_RETRY_US = 1_000


@kernel
def notify(words: np.ndarray) -> None:
    """Wake the host. A full pipe is no fault: the host has bytes to wake up from."""
    posix_write(words[mb.TOKEN_FD], words.ctypes.data, 1)  # which byte does not matter


@kernel
def await_doorbell(words: np.ndarray, buffer: np.ndarray, last: int, wake_fd: int) -> int:
    """The number of a run later than `last`, or -1 when the engine shuts down.

    Spins briefly, then sleeps in the kernel. Every ring writes one byte to every thread's pipe
    and every thread takes one byte per ring, so none is left over.
    """
    doorbell = words.ctypes.data + 8 * mb.DOORBELL
    shutdown = words.ctypes.data + 8 * mb.SHUTDOWN
    for _ in range(_IDLE_SPINS):
        if load_acquire(doorbell) != last or load_acquire(shutdown) != 0:
            break
        pause()
    while load_acquire(shutdown) == 0:
        got = posix_read(wake_fd, buffer.ctypes.data, 1)
        if got == 0:  # the engine has closed the pipe
            return -1
        if got < 0:  # interrupted by a signal
            usleep(_RETRY_US)
        elif load_acquire(doorbell) != last:
            return load_acquire(doorbell)
    return -1
