"""Does the page slow the engine, and does the page itself stay fluent?

1. tokens/s of `app.py chat` and of the page on the same engine, model and question, in turn
   (A B A B), the page with a real Chromium open on it and its sound off. The page's engine leaves
   a core to the voice: chat is run with as many threads as it has, and with all.
2. the longest task of the tab while tokens come at 4,000 a second: a made-up engine says them at
   exactly that pace, hidden ones first, then an answer; and how many of them the strip has drawn.

    python -m benchmarks.page_speed [--rounds 5] [--engine persistent-cpu] [--out FILE]

Ends with one line of JSON; needs Chromium and playwright (the `test` extra).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
QUESTION = "Explain in five sentences why the sky is blue."
PATIENCE_MS = 120_000
RATE = 4000  # tokens/s of the made-up engine
HIDDEN = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="persistent-cpu")
    parser.add_argument("--out", type=Path, default=RESULTS / "page_speed.json")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "page_speed",
        "machine": f"{os.uname().machine}, {os.cpu_count()} logical CPUs",
        "load_average": os.getloadavg()[0],
        "question": QUESTION,
        **against_chat(options.engine, options.rounds),
        "tab": fluency(),
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


# --- the page against chat ---


def against_chat(engine: str, rounds: int) -> dict[str, Any]:
    """tokens/s of each round, medians, and the ratio of page to chat."""
    rates: dict[str, list[float]] = {"chat": [], "chat, all cores": [], "page": []}
    with served(["--engine", engine]) as url, browsing() as page:
        page.goto(url)
        page.wait_for_function("window.unpaused && unpaused.state.socket === 'open'")
        page.get_by_role("switch", name="Sound").click()  # the decode alone, as chat has it
        ask(page, "Warm up.")
        for _ in range(rounds):
            rates["chat"].append(chat(engine, as_the_page=True))
            rates["chat, all cores"].append(chat(engine, as_the_page=False))
            rates["page"].append(ask(page, QUESTION))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "engine": engine,
        "rounds": rounds,
        "tokens_per_s": {name: [round(rate, 1) for rate in made] for name, made in rates.items()},
        "median_tokens_per_s": {name: round(rate, 1) for name, rate in medians.items()},
        "page_to_chat": round(medians["page"] / medians["chat"], 4),
        "page_to_chat_with_all_cores": round(medians["page"] / medians["chat, all cores"], 4),
    }


def chat(engine: str, as_the_page: bool) -> float:
    """tokens/s of one `chat` in a process of its own, with the page's number of threads or all."""
    program = (
        "import sys, engine.setup as setup\n"
        "plain = setup.open_engine\n"
        f"setup.open_engine = lambda name, model, _=False: plain(name, model, {as_the_page})\n"
        "from app import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, "chat", "--engine", engine, QUESTION, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"chat failed: {done.stderr.strip()[-400:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["tokens_per_s"])


def ask(page: Any, question: str) -> float:
    """tokens/s of one turn on the page, as its own export has it."""
    page.get_by_role("button", name="New conversation").click()  # every turn from the same cache
    page.wait_for_function("document.querySelectorAll('#conversation .figures').length === 0")
    page.fill("#prompt textarea", question)
    page.press("#prompt textarea", "Enter")
    page.wait_for_selector("#conversation .figures", timeout=PATIENCE_MS)
    turn = page.evaluate("fetch(`export/${unpaused.session}/turn.json`).then((r) => r.json())")
    return float(turn["decode"]["metrics"]["tokens_per_s"])


@contextmanager
def served(arguments: list[str]) -> Iterator[str]:
    """The real page in a process of its own."""
    port = 7871
    command = [sys.executable, "app.py", *arguments, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Unpaused is at" in line:
                break
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    from engine.doctor import find_browser
    from tests.ui.browser import ARGUMENTS

    with sync_playwright() as playwright:
        path = find_browser()
        if path is None:
            raise SystemExit("no browser: install chromium or set UNPAUSED_CHROMIUM to its path")
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser.new_page(viewport={"width": 1440, "height": 900})
        finally:
            browser.close()


# --- the tab at 4,000 tokens a second ---


def fluency() -> dict[str, Any]:
    """The tab's longest tasks while tokens come at `RATE`, and what it has drawn at the end."""
    from tests.ui.browser import free_port
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


if __name__ == "__main__":
    main()
