"""Does the tab stay fluent while tokens come at 4,000 a second? A part of `page_speed`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.served import free_port

RATE = 4000  # tokens/s of the made-up engine
HIDDEN = 500
PATIENCE_MS = 120_000


def fluency(browsing: Callable[[], AbstractContextManager[Any]]) -> dict[str, Any]:
    """The tab's longest tasks while tokens come at `RATE`, and what it has drawn at the end.

    `browsing` gives a page of a browser.
    """
    from tests.ui.fakes import FakePipeline, services
    from ui import page as pages

    answer = " ".join(f"word{number}" for number in range(256))
    pipeline = FakePipeline(reply=answer)
    pipeline.wait = Pace(RATE).wait  # type: ignore[assignment, method-assign]
    running = pages.start(services(pipeline), port=free_port())
    try:
        with browsing() as page:
            page.goto(f"{running.url}?hidden={HIDDEN}")
            page.wait_for_function("window.unpaused && unpaused.state.socket === 'open'")
            page.wait_for_timeout(2000)  # what opening the page costs is another matter
            return observed(page)
    finally:
        running.close()


class Pace:
    """Lets a token go at each tick of a clock that does not wait for who is late."""

    def __init__(self, per_s: float) -> None:
        self._gap_s, self._due_s = 1 / per_s, 0.0

    def wait(self, _: object) -> None:
        now = time.perf_counter()
        self._due_s = max(self._due_s + self._gap_s, now - 0.1)  # at most 0.1 s to catch up
        if self._due_s > now:
            time.sleep(self._due_s - now)


def observed(page: Any) -> dict[str, Any]:
    page.evaluate(
        """() => {
          window.longTasks = [];
          new PerformanceObserver((list) => {
            for (const { startTime, duration } of list.getEntries()) {
              window.longTasks.push([startTime, duration]);
            }
          }).observe({type: 'longtask', buffered: false});
        }"""
    )
    turns, began_ms = 6, list[float]()
    for number in range(1, turns + 1):
        began_ms.append(page.evaluate("performance.now()"))
        page.fill("#prompt textarea", f"Question {number}")
        page.press("#prompt textarea", "Enter")
        page.wait_for_function(
            "n => document.querySelectorAll('#conversation .figures').length === n",
            arg=number,
            timeout=PATIENCE_MS,
        )
    page.wait_for_timeout(500)
    drawn = page.evaluate("document.querySelector('[data-part=strip]').dataset.tokens")
    tasks = page.evaluate("window.longTasks")
    # The first turn also mounts the conversation, once; it is told apart.
    first = [ms for start, ms in tasks if start < began_ms[1]]
    later = [ms for start, ms in tasks if start >= began_ms[1]]
    return {
        "tokens_per_s": RATE,
        "turns": turns,
        "tokens_a_turn": HIDDEN + 256,
        "drawn_tokens": int(drawn),
        "first_turn_tasks_over_50_ms": [round(ms, 1) for ms in first],
        "later_tasks_over_50_ms": [round(ms, 1) for ms in later],
    }
