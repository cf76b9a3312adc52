"""Voice turns for an hour: does the server's memory stay flat?

`python -m benchmarks.soak [--minutes 60] [--engine NAME] [--limit MB_PER_H] [--json FILE]`

One visitor speaks, listens and speaks again, faster than real time; every so often the page is
opened anew. In less than an hour a slope cannot be told from noise so finely: the limit is then
an hour's growth within the time there was (1 MB/h in 60 minutes, 12 MB/h in 5).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.served import Memory, Served, check_environment, served
from benchmarks.visitor import Visitor
from benchmarks.visitors import Story, stories
from engine.errors import UnpausedError

WARM_UP_SHARE = 0.25
PAGES_EVERY = 30  # turns
PAUSE_S = 1.6  # a visitor may have 40 turns a minute


async def soak(server: Served, story: Story, minutes: float) -> dict[str, Any]:
    until = time.monotonic() + 60 * minutes
    turns, faults = 0, list[str]()
    while time.monotonic() < until:
        async with Visitor(server.url, fast=True) as visitor:
            for index in range(PAGES_EVERY):
                began = time.monotonic()
                heard = await story.ask(visitor, index % len(story.questions))
                turns += 1
                if heard.finish != "complete":
                    faults.append(f"a turn ended as {heard.finish}")
                await asyncio.sleep(max(0.0, began + PAUSE_S - time.monotonic()))
                if time.monotonic() >= until:
                    break
            faults += visitor.faults
    return {"turns": turns, "faults": faults}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--engine", default="persistent-cpu")
    parser.add_argument("--limit", type=float, help="MB/h of growth (default: 60 / minutes)")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    limit = 60 / options.minutes if options.limit is None else options.limit
    check_environment()
    try:
        story = stories(2)[1]
        with served(options.engine) as server, Memory(server.process) as memory:
            counts = asyncio.run(soak(server, story, options.minutes))
    except UnpausedError as error:
        print(f"unpaused: {error}", file=sys.stderr)
        return 2
    slope = memory.slope_mb_per_h(60 * options.minutes * WARM_UP_SHARE)
    result = {
        "engine": options.engine,
        "minutes": options.minutes,
        **counts,
        "rss_mb": [round(memory.samples[0][1], 1), round(memory.samples[-1][1], 1)],
        "slope_mb_per_h": None if slope is None else round(slope, 2),
        "limit_mb_per_h": round(limit, 2),
    }
    result["passed"] = not counts["faults"] and slope is not None and slope < limit
    text = json.dumps(result, indent=1)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
