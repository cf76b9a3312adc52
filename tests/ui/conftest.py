from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.ui.fakes import FakePipeline, services
from ui.services import Runtime
from ui.session import Session
from ui.visitors import Visitors


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """On a busy machine a browser may be silent for long and has not gone for good."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ui.outbox.STALL_S", 60.0)
        yield


@pytest.fixture
def pipeline() -> FakePipeline:
    return FakePipeline()


@pytest.fixture
def visitors(pipeline: FakePipeline) -> Iterator[Visitors]:
    made = Visitors(Runtime(services(pipeline)))
    yield made
    made.close_all()


@pytest.fixture
def session(visitors: Visitors) -> Session:
    return visitors.open()


def until(session: Session, condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait for `condition`, looking again whenever the session changes."""
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        session.wait(session.view().version, 0.02)
    raise AssertionError("it did not happen in time")
