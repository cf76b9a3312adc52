"""What of the page needs no browser."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from benchmarks.served import free_port
from engine.errors import UnpausedError
from tests.ui.fakes import FakeEntry, FakePipeline, services
from ui import panels
from ui.layout import engine_choices
from ui.page import Page, check_port, start
from ui.services import Lazy, Runtime


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    running = start(services(FakePipeline()), port=free_port())
    yield running
    running.close()


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnpausedError, match=f"cannot listen on 127.0.0.1:{port} .*--port"):
            start(services(FakePipeline()), port=port)


def test_a_port_of_an_earlier_run_can_be_had_again() -> None:
    port = free_port()
    for _ in range(2):
        start(services(FakePipeline()), port=port).close()


def test_a_machine_too_busy_to_answer_itself_at_once_still_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradio.networking.url_ok", lambda url: False)
    start(services(FakePipeline()), port=free_port()).close()


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(UnpausedError, match="not a port"):
        check_port("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(UnpausedError, match="--host"):
        check_port("192.0.2.1", free_port())


def test_an_engine_that_cannot_start_here_is_said_before_the_page_comes_up() -> None:
    missing = [FakeEntry("eager", "Kernel per op", reason="no torch")]
    with pytest.raises(UnpausedError, match="no torch"):
        start(services(FakePipeline(), missing), port=free_port())


def test_engines_are_sorted_into_those_that_run_and_those_that_say_why_not() -> None:
    made = services(
        FakePipeline(),
        [FakeEntry("eager", "Kernel per op"), FakeEntry("graph", "CUDA graph", reason="no GPU")],
    )
    assert engine_choices(made) == ([("Kernel per op", "eager")], [("CUDA graph", "no GPU")])


def test_names_and_reasons_are_escaped() -> None:
    assert "<b>" not in panels.header("<b>model</b>")
    assert "<b>" not in panels.unavailable([("<b>", "<b>")])
    assert panels.unavailable([]) == ""


def test_the_page_asks_nothing_of_other_hosts_and_offers_no_api(page: Page) -> None:
    def get(path: str) -> str:
        with urllib.request.urlopen(f"{page.url.rstrip('/')}/{path}", timeout=20) as answer:
            return str(answer.read().decode())

    config = json.loads(get("config"))
    assert config["analytics_enabled"] is False
    assert config["footer_links"] == []
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get("gradio_api/info")
    assert "fonts.googleapis" not in get("theme.css")
    assert "@font-face" not in get("theme.css")


def test_a_lazy_value_is_made_once_and_a_failure_is_not_kept() -> None:
    attempts: list[int] = []

    def make() -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise UnpausedError("not yet")
        return 7

    lazy = Lazy(make)
    with pytest.raises(UnpausedError):
        lazy()
    assert (lazy.ready, lazy(), lazy(), lazy.ready, len(attempts)) == (False, 7, 7, True, 2)


def test_warming_up_leaves_faults_to_the_turn_that_meets_them() -> None:
    made = services(FakePipeline())

    def broken(name: str) -> object:
        raise UnpausedError("no weights")

    runtime = Runtime(type(made)(**{**vars(made), "make_engine": broken}))
    for thread in runtime.warm():
        thread.join(10)
    assert not runtime.ready
    with pytest.raises(UnpausedError, match="no weights"):
        runtime.engine("eager")
