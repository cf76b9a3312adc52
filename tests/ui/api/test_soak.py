"""Voice turns with the real models, page after page: the process does not grow.

`make soak` is the same for an hour. This one is faster than real time and looks at a page's growth:
a cache, an answer's sound or a native buffer that is kept shows within a dozen pages.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from benchmarks.served import free_port, theil_sen
from benchmarks.visitor import Visitor
from benchmarks.visitors import Story, stories
from tests.ui.api.conftest import alone, wait_empty, wait_forgotten
from tests.ui.real import real_services
from ui.memory import heap_in_use
from ui.page import Page, start

WARM_UP, PAGES = 3, 6
TURNS = 4  # of one page
GROWTH_MB = 0.5  # a page; the sound of its answers alone has 1.5, its KV cache 47


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("CI") != "true", reason="takes two minutes: set CI=true")
@pytest.mark.skipif(heap_in_use() is None, reason="this C library does not tell what is in use")
@pytest.mark.timeout(900)
def test_voice_turns_do_not_grow_the_process(
    request: pytest.FixtureRequest, smollm2_path: Path, whisper_dir: Path, voice_path: Path
) -> None:
    if not alone(request):
        return
    made = real_services(smollm2_path, whisper_dir, voice_path, max_tokens=24)
    page = start(made, port=free_port())
    try:
        story = stories(2)[1]
        sizes = [measured(page, story) for _ in range(WARM_UP + PAGES)]
    finally:
        page.close()
    growth = theil_sen(list(enumerate(sizes))[WARM_UP:])
    assert growth is not None and growth < GROWTH_MB, [round(size, 1) for size in sizes]


def measured(page: Page, story: Story) -> float:
    """MB in use of the heaps after one more page with its turns: the least of several looks,
    since threads that end take something with them a moment later.
    """
    asyncio.run(visit(page, story))
    wait_forgotten(page)
    looks = []
    for _ in range(5):
        page.visitors.tidy()
        looks.append((heap_in_use() or 0) / 1e6)
        time.sleep(0.5)
    return min(looks)


async def visit(page: Page, story: Story) -> None:
    async with Visitor(page.url, fast=True) as visitor:
        for turn in range(TURNS):
            page.visitors.runtime.allowances.clear()
            heard = await story.ask(visitor, turn % len(story.questions))
            assert heard.finish == "complete" and heard.samples == heard.announced
        assert visitor.foreign == 0 and not visitor.faults
    await wait_empty(page)
