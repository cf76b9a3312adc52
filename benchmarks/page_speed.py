"""Does the page slow the engine, and does the page itself stay fluent?

1. tokens/s of `app.py chat` and of the page on the same engine, model and question, with the same
   number of engine threads, in turn (A B C D A B C D), the page's sound off:
     chat            the command, in a process of its own each time
     elsewhere       the page, read by a client that asks, follows and draws nothing, at low
                     priority: what a page open on another machine costs the engine
     low priority    the page in a Chromium that gives way to the engine
     same cores      the page in a Chromium as it comes, which draws on the engine's own cores
   Beside them `chat` with all cores: the page leaves one to the voice.
2. the longest task of the tab while tokens come at 4,000 a second: a made-up engine says them at
   exactly that pace, hidden ones first, then an answer; and how many of them the strip has drawn.

    python -m benchmarks.page_speed [--rounds 8] [--engine persistent-cpu] [--json FILE]

Ends with one line of JSON; needs Chromium and playwright (the `test` extra). About four minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.page_fluency import fluency
from benchmarks.results import result_file, write_json
from benchmarks.served import check_environment, served
from benchmarks.visitor import Visitor

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
QUESTION = "Tell me a long story about a lighthouse keeper and the sea."
PATIENCE_MS = 120_000
LOWEST = 10  # niceness: gives way, and still comes to its end
SESSION = os.getsid(0)  # the server's and chat's, too


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--engine", default="persistent-cpu")
    parser.add_argument("--json", type=result_file, default=RESULTS / "page_speed.json")
    options = parser.parse_args()
    check_environment()
    result: dict[str, Any] = {
        "benchmark": "page_speed",
        "machine": f"{os.uname().machine}, {os.cpu_count()} logical CPUs",
        "load_average": os.getloadavg()[0],
        "question": QUESTION,
        **against_chat(options.engine, options.rounds),
        "tab": fluency(browsing),
    }
    write_json(options.json, result)
    print(json.dumps(result))


# --- the page against chat ---


def against_chat(engine: str, rounds: int) -> dict[str, Any]:
    """Of each way: tokens/s of every round, and their ratio to the chat of the same round."""
    rates: dict[str, list[float]] = {}
    with served(engine) as server, browsing() as page, elsewhere(server.url) as ask_elsewhere:
        page.goto(server.url)
        page.wait_for_function("window.unpaused && unpaused.state.socket === 'open'")
        page.get_by_role("switch", name="Sound").click()  # the decode alone, as chat has it
        ways: dict[str, Callable[[], float]] = {
            "chat": lambda: chat(engine, as_the_page=True),
            "elsewhere": ask_elsewhere,
            "low priority": lambda: giving_way(lambda: ask(page, QUESTION)),
            "same cores": lambda: ask(page, QUESTION),
            "chat, all cores": lambda: chat(engine, as_the_page=False),
        }
        ask(page, "Warm up.")
        ask_elsewhere()
        for number in range(rounds):
            for name, measure in ways.items():
                rates.setdefault(name, []).append(measure())
            print(number + 1, {name: round(made[-1]) for name, made in rates.items()}, flush=True)
    return {
        "engine": engine,
        "rounds": rounds,
        "tokens_per_s": {name: spread(made, 1) for name, made in rates.items()},
        "of_chat": {
            name: spread([rate / base for rate, base in zip(made, rates["chat"], strict=True)], 4)
            for name, made in rates.items()
            if name != "chat"
        },
        "of_chat_by_medians": {
            name: round(statistics.median(made) / statistics.median(rates["chat"]), 4)
            for name, made in rates.items()
        },
    }


def spread(values: list[float], digits: int) -> dict[str, Any]:
    """n, median, least, most, and all of them."""
    named = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {
        "n": len(values),
        **{name: round(value, digits) for name, value in named.items()},
        "all": [round(value, digits) for value in values],
    }


def chat(engine: str, as_the_page: bool) -> float:
    """tokens/s of one `chat` in a process of its own, with the page's number of threads or all."""
    program = (
        "import sys, engine.setup as setup\n"
        "plain = setup.open_engine\n"
        "def opened(name, model, speaking=False, *rest, **options):\n"
        f"    return plain(name, model, {as_the_page}, *rest, **options)\n"
        "setup.open_engine = opened\n"
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
    page.wait_for_selector("#conversation .figures")
    turn = page.evaluate("fetch(`export/${unpaused.session}/turn.json`).then((r) => r.json())")
    return float(turn["decode"]["metrics"]["tokens_per_s"])


@contextmanager
def elsewhere(url: str) -> Iterator[Callable[[], float]]:
    """A process that has the page open and draws nothing; call it for the tokens/s of a turn."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    reader = context.Process(target=read_pages, args=(url, theirs), daemon=True)
    reader.start()

    def measure() -> float:
        ours.send(QUESTION)
        if not ours.poll(PATIENCE_MS / 1e3):
            raise SystemExit("the client without a browser got no answer")
        return float(ours.recv())

    try:
        yield measure
    finally:
        reader.terminate()
        reader.join(20)


def read_pages(url: str, requests: Any) -> None:
    """Answers each question that comes with the tokens/s of its turn, on a page of its own."""
    os.setsid()  # a group of its own, as another program would have
    yield_to_all(os.getpid(), LOWEST)

    async def turn(question: str) -> float:
        async with Visitor(url) as visitor:
            await visitor._send(type="sound", on=False)
            await visitor.type_(question)
            return float((await visitor.ledger())["turns"][-1]["decode"]["metrics"]["tokens_per_s"])

    while True:
        requests.send(asyncio.run(turn(requests.recv())))


def giving_way(measure: Callable[[], float]) -> float:
    """`measure()` while the browser's processes have the lowest priority."""
    browser = [process for process in psutil.Process().children(True) if "chrom" in process.name()]
    for process in browser:
        yield_to_all(process.pid, LOWEST)
    try:
        return measure()
    finally:
        for process in browser:
            yield_to_all(process.pid, 0)


def yield_to_all(pid: int, niceness: int) -> None:
    """Set the niceness of a process, and of the group that Linux weighs it in."""
    # Between sessions Linux weighs groups ("autogroups"), not processes, and a browser has its own.
    if os.getsid(pid) != SESSION:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), niceness)


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
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(PATIENCE_MS)
            yield page
        finally:
            browser.close()


if __name__ == "__main__":
    main()
