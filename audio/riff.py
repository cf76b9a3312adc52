"""What a RIFF header promises. libsndfile reads a cut WAV as a shorter one without a word."""

from __future__ import annotations

import struct
from pathlib import Path

# Writers to a pipe cannot know the size and leave 0xFFFFFFFF or, as SoX does, 0x7FFFF000.
_UNKNOWN_SIZE = 0x7FFFF000
_MAX_CHUNKS = 1000


def missing_bytes(path: Path) -> int:
    """How many bytes of the data chunk a WAV file lacks; 0 for any other file.

    A file that ends within its header is not judged here: no reader opens it.
    """
    if not path.is_file():
        return 0
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(12)
        if magic[:4] != b"RIFF" or magic[8:] != b"WAVE":
            return 0
        for _ in range(_MAX_CHUNKS):
            head = file.read(8)
            if len(head) < 8:
                return 0
            name, length = struct.unpack("<4sI", head)
            if name == b"data":
                known = length < _UNKNOWN_SIZE
                return max(0, file.tell() + length - size) if known else 0
            file.seek(length + length % 2, 1)  # chunks are padded to an even length
    return 0
