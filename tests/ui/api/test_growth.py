"""Turn after turn, page after page: what the server holds stays the same."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from typing import Any, cast

import numpy as np
import pytest

from audio.pipeline import VoicePipeline
from benchmarks.visitor import Visitor
from tests.ui.api.conftest import (
    FakeSynthesizer,
    SlowEngine,
    alone,
    made_services,
    wait_empty,
    wait_forgotten,
)
from tests.ui.fakes import FakePipeline
from ui.page import Page
from ui.services import Runtime, Services
from ui.visitors import Visitors

TURNS = 6  # of one page
PAGES = 5
GROWTH_BYTES = 20_000  # a page; the voice of one answer has 150,000


@pytest.mark.timeout(800)
def test_pages_and_their_turns_leave_nothing_behind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if alone(request):
        # Once, some seconds after its start, a server keeps for ever what there is, and that would
        # be a visitor's things where a busy machine comes to it late.
        monkeypatch.setattr("ui.visitors.keep_what_is_loaded", lambda: None)
        check_growth(request.getfixturevalue("page"))


def check_growth(page: Page) -> None:
    """What Python holds after more pages and turns is what it held before."""
    speech = np.zeros(12000, np.int16)
    speech[2000:9000] = 9000
    runtime = page.visitors.runtime
    pipeline: Any = runtime.pipeline()

    async def visit() -> None:
        async with Visitor(page.url, fast=True) as visitor:
            for turn in range(TURNS):
                runtime.allowances.clear()
                heard = await (visitor.speak(speech) if turn % 2 else visitor.type_("Why?"))
                assert heard.finish == "complete" and heard.samples == heard.announced
            assert visitor.foreign == 0 and not visitor.faults
        pipeline.turns.clear()  # the stand-in's own memory
        pipeline.heard.clear()
        await wait_empty(page)

    tracemalloc.start()
    try:
        for _ in range(3):
            asyncio.run(visit())
        wait_forgotten(page)
        threads = threading.active_count()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(PAGES):
            asyncio.run(visit())
        wait_forgotten(page)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / PAGES < GROWTH_BYTES
    assert threading.active_count() <= threads + 2
    assert runtime.gate.length == 0 and runtime.kv.held <= 1


def test_a_visitor_who_leaves_takes_the_cache_along(slow: SlowEngine) -> None:
    """At once: what a session is made of refers to each other, and is collected some time later."""
    pipeline = VoicePipeline(cast(Any, None), cast(Any, FakeSynthesizer()))
    made = Services(
        **{**vars(made_services(slow, FakePipeline())), "make_pipeline": lambda: pipeline}
    )
    visitors = Visitors(Runtime(made))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            session = visitors.open()
            session.start_text("hello")
            assert session.wait_idle(20)
            assert visitors.runtime.kv.held == 1
            visitors.close(session.id)
            assert visitors.runtime.kv.held == 0
    finally:
        gc.enable()
