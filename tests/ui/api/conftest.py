"""A whole server with a tiny model behind its API; the page's own turns have stand-ins."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openai
import pytest
import torch

from benchmarks.served import free_port
from engine.conversation import Conversation
from engine.eager import EagerEngine
from engine.models.base import Model
from engine.weights import load_model
from tests.engine import tiny
from tests.ui.fakes import RATE_HZ, FakeEntry, FakePipeline, services, tone
from ui.access import Access
from ui.page import Page, start
from ui.services import Services

CONTEXT = 512
_ALONE = "UNPAUSED_TEST_ALONE"  # the name of the test that has this process


class FakeSynthesizer:
    rate_hz = RATE_HZ

    def synthesize(self, text: str, cancel: Any = None) -> np.ndarray:
        words = [word for word in text.split() if any(map(str.isalnum, word))]
        return tone(0.1 * len(words))


@dataclass
class SpeechPipeline(FakePipeline):
    """Hears `transcript` in everything, and speaks in tones."""

    synthesizer: FakeSynthesizer = field(default_factory=FakeSynthesizer)
    language: str | None = "en"

    def transcribe(self, samples: np.ndarray) -> str:
        self.heard.append(samples)
        return self.transcript


class SlowEngine(EagerEngine):
    """Waits at every token while `pace` is cleared, as long as nobody stops it."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.pace = threading.Event()
        self.pace.set()
        self.idle = threading.Event()
        self.idle.set()

    def decode(self, cache: Any, token_ids: Any, params: Any) -> Any:
        return _SlowRun(self, super().decode(cache, token_ids, params))


class _SlowRun:
    def __init__(self, engine: SlowEngine, run: Any) -> None:
        self._engine, self._run, self._stopped = engine, run, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def stop(self) -> None:
        self._stopped.set()
        self._run.stop()

    def __iter__(self) -> Iterator[Any]:
        self._engine.idle.clear()
        try:
            for token in self._run:
                yield token
                while not (self._stopped.is_set() or self._engine.pace.wait(0.005)):
                    pass
        finally:
            self._engine.idle.set()


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny Llama of 512 positions."""
    reference = tiny.make_reference("llama", max_position_embeddings=CONTEXT)
    folder = tiny.save(reference, tmp_path_factory.mktemp("tiny") / "chatty")
    return load_model(folder, dtype=torch.float32)


@pytest.fixture(scope="session")
def slow(chatty: Model) -> SlowEngine:
    return SlowEngine(chatty)


def made_services(engine: SlowEngine, pipeline: FakePipeline) -> Services:
    entries = [
        FakeEntry("eager", "Kernel per op"),
        FakeEntry("other", "Another"),
        FakeEntry("graph", "CUDA graph", reason="no GPU"),
    ]
    made = services(pipeline, entries, lambda: Conversation(engine.model, CONTEXT))
    return Services(**{**vars(made), "make_engine": lambda name: engine})


def alone(request: pytest.FixtureRequest) -> bool:
    """Whether this is the test's own process. If not, it is run in one, and has passed.

    For what is measured of a process: servers of other tests hold things, and freeze what there is.
    """
    if os.environ.get(_ALONE) == request.node.name:
        return True
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid],
        cwd=request.config.rootpath, env={**os.environ, _ALONE: request.node.name},
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    return False


async def wait_empty(page: Page) -> None:
    """Until the server knows that every visitor has left: by the tab's connection."""
    end = time.monotonic() + 60
    while page.visitors._sessions:
        assert time.monotonic() < end, "the session outlived its page"
        await asyncio.sleep(0.05)


def kept(app: Any) -> set[str]:
    """The pages, by their name in the browser's tab, of which Gradio's `app` keeps something."""
    queue = app.get_blocks()._queue
    names = set(app.state_holder.session_data) | set(queue.pending_messages_per_session)
    return names | set(queue.pending_event_ids_session)


def wait_forgotten(page: Page, pages: int = 0) -> None:
    """Until Gradio keeps something of so many pages only."""
    end = time.monotonic() + 60
    while len(names := kept(page.blocks.app)) > pages:
        assert time.monotonic() < end, f"{len(names)} pages outlived their closing"
        time.sleep(0.05)


Serve = Callable[..., Page]


@pytest.fixture(scope="module")
def serve(slow: SlowEngine) -> Iterator[Serve]:
    """`serve(**Access's fields)`: a running server, until the module's tests are over."""
    pages: list[Page] = []

    def serve(**fields: Any) -> Page:
        made = made_services(slow, SpeechPipeline())
        page = start(made, port=free_port(), access=Access(**fields))
        pages.append(page)
        return page

    yield serve
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def page(serve: Serve) -> Page:
    """One without a password, shared by the module's tests."""
    return serve()


@pytest.fixture(autouse=True)
def _unhurried(page: Page, slow: SlowEngine) -> Iterator[None]:
    """Tests of one address come faster than people: each begins with a full allowance."""
    slow.pace.set()
    page.visitors.runtime.allowances.clear()
    yield
    slow.pace.set()


@pytest.fixture
def client(page: Page) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{page.url}v1", api_key="unused", max_retries=0, timeout=60)
