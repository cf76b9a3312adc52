"""What every source of weights shares: how it reports progress and how it says no."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeAlias

# Called with the name of what is fetched, bytes so far and bytes in all (0: not known yet). A
# second source tried after the first starts at 0 again. Calls may come from any thread.
Progress: TypeAlias = Callable[[str, int, int], None]

# Faults of this machine's disk: another source would meet them too.
LOCAL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS})


class SourceError(Exception):
    """One source could not deliver; the message says why, and another source may be tried."""


def no_progress(name: str, done_bytes: int, total_bytes: int) -> None:
    """The progress callback of a caller that wants none."""
