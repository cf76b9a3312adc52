"""Memory that is no longer used goes back to the system, when nobody waits for the processor."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, ten sizes: of these `in_use` are bytes of its heaps that the
    program holds, `mapped` those that it gave out one by one."""

    _fields_ = [
        ("other", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),
        ("more", ctypes.c_size_t * 2),
        ("in_use", ctypes.c_size_t),
        ("rest", ctypes.c_size_t * 2),
    ]


def heap_in_use() -> int | None:
    """Bytes that the program holds of `malloc`; None where the C library does not tell (not glibc).

    What the allocator keeps free for later, some hundred MB that come and go, is not among them:
    growth of this is a leak, growth of resident memory may be none. Python's own small objects
    lie elsewhere.
    """
    tell = _of_glibc("mallinfo2")
    if tell is None:
        return None
    tell.restype = _MallocInfo
    told = tell()
    return int(told.in_use + told.mapped)


def keep_few_heaps() -> bool:
    """Let all threads share two heaps; call it before there are threads. False without glibc.

    Left alone, glibc makes up to eight for each core, and in every one of them lies a bit that
    keeps a turn's memory from going back: a server of voice turns grew by over 100 MB an hour in
    which the program held no more than before.
    """
    set_option = _of_glibc("mallopt")
    return set_option is not None and bool(set_option(_ARENA_MAX, 2))


def keep_what_is_loaded() -> None:
    """What there is now stays: libraries, models.

    Later collections need not look at its million objects, and so neither stop a reply for long
    nor wait until a quarter as many more have come.
    """
    gc.collect()
    gc.freeze()


def tidy() -> None:
    """Collect what refers to itself, and return what the allocator holds free.

    glibc keeps a heap for each of several threads, and a turn has some threads of its own: what
    they used and freed would stay in all of them.
    """
    gc.collect()
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Any:
    """A function of the C library; None where it is another one that has no such thing."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
