"""A real Chromium on a running page, watched: it may talk to the page's server only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Playwright

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
]


PATIENCE_MS = 60_000  # for a state that will come, however busy the machine is


@contextmanager
def chromium(
    playwright: Playwright, path: str, wav: Path | None = None, microphone: str = "allow"
) -> Iterator[Browser]:
    """Chromium with a fake microphone: it plays `wav` once, or beeps without one."""
    grant = "" if microphone == "allow" else f"={microphone}"
    arguments = [*ARGUMENTS, f"--use-fake-ui-for-media-stream{grant}"]
    if wav is not None:
        arguments.append(f"--use-file-for-fake-audio-capture={wav}%noloop")
    browser = playwright.chromium.launch(executable_path=path, args=arguments)
    try:
        yield browser
    finally:
        browser.close()


@contextmanager
def visit(
    browser: Browser, url: str, script: str = "", tolerated: str = "", **options: Any
) -> Iterator[Page]:
    """The page, ready for use. Afterwards nothing may have gone wrong that nobody looked at.

    `script` runs before the page's own; console errors that match `tolerated` are expected.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    # What the page's policy forbids is announced, but never sent.
    page.on("requestfailed", lambda r: sent.remove(r.url) if r.failure == "csp" else None)
    page.on("websocket", lambda opened: sent.append(opened.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    if script:
        page.add_init_script(script)
    page.goto(url)
    page.wait_for_function("window.unpaused && unpaused.state.socket === 'open'")
    try:
        yield page
        unexpected = [fault for fault in faults if not tolerated or not re.search(tolerated, fault)]
        assert not unexpected, unexpected
        hosts = {urlsplit(url).hostname for url in sent}
        assert hosts - {None} == {"127.0.0.1"}, hosts  # blob: URLs have no host
    finally:
        context.close()


def status(page: Page) -> str:
    return page.locator("[data-part=status]").inner_text()


def wait_for_status(page: Page, words: str) -> None:
    """Until the status matches `words`, a regular expression."""
    page.wait_for_function(
        "words => document.querySelector('[data-part=status]').textContent.match(words)",
        arg=words,
    )


def wait_for_text(page: Page, selector: str, text: str) -> None:
    """Until the first element of `selector` shows exactly `text`."""
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.innerText === text",
        arg=[selector, text],
    )


def ask(page: Page, text: str) -> None:
    page.fill("#prompt textarea", text)
    page.press("#prompt textarea", "Enter")


# Answers, without the line of figures below each.
ANSWERS = "#conversation .bot-row .message-content:not(:has(.figures))"


def replies(page: Page) -> list[str]:
    return page.locator(ANSWERS).all_inner_texts()


def wait_for_reply(page: Page, text: str) -> None:
    """Until the last reply contains `text`."""
    page.wait_for_function(
        """([text, answers]) => {
          const rows = document.querySelectorAll(answers);
          return rows.length > 0 && rows[rows.length - 1].innerText.includes(text);
        }""",
        arg=[text, ANSWERS],
    )


def wait_for_end(page: Page, turns: int = 1) -> None:
    """Until so many turns have ended: then their answers have figures."""
    page.wait_for_function(
        """turns => document.querySelectorAll('#conversation .figures').length === turns
          && !unpaused.state.server""",
        arg=turns,
    )


def audible(page: Page) -> int:
    """Samples above -48 dBFS that the playback worklet has put out since the page opened."""
    return int(page.evaluate("unpaused.stats.audible"))
