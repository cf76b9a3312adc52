"""What the program holds of the C library's heaps, which tells a leak from what is kept free."""

from __future__ import annotations

import pytest

from ui.memory import heap_in_use, tidy
from ui.visitors import Visitors


@pytest.mark.skipif(heap_in_use() is None, reason="this C library does not tell what is in use")
@pytest.mark.parametrize("size", [100_000, 50_000_000], ids=["of a heap", "mapped"])
def test_what_is_held_counts_and_what_is_given_back_does_not(size: int) -> None:
    tidy()
    before = heap_in_use() or 0
    held = [bytearray(size) for _ in range(4)]
    during = heap_in_use() or 0
    assert during - before > 3.9 * size
    held.clear()
    tidy()
    assert (heap_in_use() or 0) < during - 3.5 * size


@pytest.mark.skipif(heap_in_use() is None, reason="this C library does not tell what is in use")
def test_the_server_tells_it(visitors: Visitors) -> None:
    told = visitors.runtime.telemetry.registry.get_sample_value("unpaused_heap_bytes")
    assert told is not None and told > 1e6
