"""Voice turns for an hour: does the server's memory stay flat?

`python -m benchmarks.soak [--minutes 60] [--engine NAME] [--limit MB_PER_H] [--json FILE]`

One visitor speaks, listens and speaks again, faster than real time, and opens the page anew after
every few turns. Memory is looked at between two pages, when nobody is there; the first pages,
until buffers and heaps have their size, do not count. The limit is 1 MB/h of what the server holds
of its heaps, which it tells under /metrics; resident memory is reported beside it, and counts only
where a C library does not tell: what the allocator keeps free is some ten MB up or down.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from datetime import UTC, datetime
from typing import Any

from benchmarks.machine import cpu_name, git_commit
from benchmarks.results import result_file, write_json
from benchmarks.served import Memory, Served, check_environment, served, slope_mb_per_h
from benchmarks.visitor import Visitor
from benchmarks.visitors import Story, stories
from engine.errors import UnpausedError

WARM_UP_PAGES = 10
TURNS_OF_A_PAGE = 6
SETTLE_S = 12.0  # for a session to be closed, forgotten, and what it left to be collected
PAUSE_S = 1.6  # a visitor may have 40 turns a minute


async def soak(server: Served, memory: Memory, story: Story, minutes: float) -> dict[str, Any]:
    until = time.monotonic() + 60 * minutes
    turns, faults = 0, list[str]()
    while time.monotonic() < until:
        async with Visitor(server.url, fast=True) as visitor:
            for index in range(TURNS_OF_A_PAGE):
                began = time.monotonic()
                heard = await story.ask(visitor, index % len(story.questions))
                turns += 1
                if heard.finish != "complete":
                    faults.append(f"a turn ended as {heard.finish}")
                await asyncio.sleep(max(0.0, began + PAUSE_S - time.monotonic()))
                if time.monotonic() >= until:
                    break
            faults += visitor.faults
        await asyncio.sleep(SETTLE_S)
        memory.take()
    return {"turns": turns, "faults": faults}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--engine", default="persistent-cpu")
    parser.add_argument("--limit", type=float, default=1.0, help="MB/h of growth")
    parser.add_argument("--json", type=result_file, help="write the result to this file")
    options = parser.parse_args()
    check_environment()
    found = {
        "benchmark": "soak",
        "machine": cpu_name(),
        "commit": git_commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }
    try:
        story = stories(2)[1]
        with served(options.engine) as server:
            memory = Memory(server)
            counts = asyncio.run(soak(server, memory, story, options.minutes))
    except UnpausedError as error:
        print(f"unpaused: {error}", file=sys.stderr)
        return 2
    resident, heap = (
        slope_mb_per_h(samples, WARM_UP_PAGES) for samples in (memory.resident, memory.heap)
    )
    slope = resident if heap is None else heap
    result = {
        **found,
        "engine": options.engine,
        "minutes": options.minutes,
        **counts,
        "rss_mb": [round(mb, 1) for _, mb in memory.resident],
        "heap_mb": [round(mb, 2) for _, mb in memory.heap],
        "rss_slope_mb_per_h": resident,
        "heap_slope_mb_per_h": heap,
        "limit_mb_per_h": options.limit,
    }
    result["passed"] = not counts["faults"] and slope is not None and slope < options.limit
    if options.json:
        write_json(options.json, result)
    print(json.dumps(result, indent=1))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
