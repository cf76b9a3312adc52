"""Memory that is no longer used goes back to the system, when nobody waits for the processor."""

from __future__ import annotations

import ctypes
import gc
import sys


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
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)
