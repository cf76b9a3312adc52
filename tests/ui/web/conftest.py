"""A page with fakes for the models, and a Chromium to look at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from benchmarks.served import free_port
from tests.ui.browser import chromium, visit
from tests.ui.fakes import FakeEntry, FakePipeline, services
from ui import page as page_module

ENGINES = [
    FakeEntry("eager", "Kernel per op", "PyTorch, one launch per operation"),
    FakeEntry("cpu", "Native", "native threads that stay"),
    FakeEntry("graph", "CUDA graph", reason="needs an NVIDIA GPU"),
]

Served = tuple[page_module.Page, FakePipeline]


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    pipeline = FakePipeline()
    running = page_module.start(services(pipeline, ENGINES), port=free_port())
    yield running, pipeline
    running.close()


@pytest.fixture
def pipeline(served: Served) -> Iterator[FakePipeline]:
    """The server's pipeline, as new."""
    running, made = served
    fresh = FakePipeline()
    for name in ("reply", "transcript", "fails", "word_s", "hold_after", "finish_reason"):
        setattr(made, name, getattr(fresh, name))
    made.turns.clear()
    made.pace.set()
    yield made
    made.pace.set()
    running.visitors.close_all()


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="package")
def browser(playwright: Playwright, chromium_path: str) -> Iterator[Browser]:
    with chromium(playwright, chromium_path) as started:
        yield started


@pytest.fixture
def url(served: Served, pipeline: FakePipeline) -> str:
    return served[0].url


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with visit(browser, url) as opened:
        yield opened
