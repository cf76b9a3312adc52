"""The page behind a password and on a public link, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, HttpCredentials
from playwright.sync_api import Page as Tab

from benchmarks.served import free_port
from tests.ui.browser import ask, visit, wait_for_reply, wait_for_status
from tests.ui.fakes import FakePipeline, services
from ui.access import Access
from ui.page import Page, start

pytestmark = pytest.mark.browser
PASSWORD: HttpCredentials = {"username": "ann", "password": "secret"}


@pytest.fixture
def access() -> Access:
    return Access(share=True)


@pytest.fixture
def pipeline() -> FakePipeline:
    return FakePipeline()


@pytest.fixture
def page(access: Access, pipeline: FakePipeline) -> Iterator[Page]:
    running = start(services(pipeline), port=free_port(), access=access)
    yield running
    running.close()


def warned(tab: Tab) -> bool:
    return tab.locator("#shared p").is_visible()


def test_the_password_opens_page_and_socket(page: Page, access: Access, browser: Browser) -> None:
    access.auth, access.link = "ann:secret", "https://x.share.test"
    reloading = "AbortError|Connection errored out"  # what Gradio's client says of it
    with visit(browser, page.url, tolerated=reloading, http_credentials=PASSWORD) as tab:
        ask(tab, "Why?")
        wait_for_reply(tab, "more than long ones.")
        tab.reload()  # with the cookie
        tab.wait_for_function("window.unpaused && unpaused.state.socket === 'open'")
        assert not warned(tab)


def test_without_the_password_there_is_nothing(
    page: Page, access: Access, browser: Browser
) -> None:
    access.auth = "ann:secret"
    wrong: HttpCredentials = {"username": "ann", "password": "wrong"}
    context = browser.new_context(http_credentials=wrong)
    try:
        tab = context.new_page()
        answer = tab.goto(page.url)
        assert answer is not None and answer.status == 401
        assert "Unpaused" not in tab.title()
    finally:
        context.close()


def test_an_open_link_is_warned_of(page: Page, access: Access, browser: Browser) -> None:
    with visit(browser, page.url) as tab:
        assert not warned(tab)  # there is no link yet
    access.link = "https://x.share.test"
    with visit(browser, page.url) as tab:
        tab.wait_for_selector("#shared p", state="visible")
        assert "without a password" in tab.locator("#shared").inner_text()


def test_who_waits_sees_place_and_time(
    page: Page, pipeline: FakePipeline, browser: Browser
) -> None:
    with visit(browser, page.url) as first, visit(browser, page.url) as second:
        pipeline.word_s = 0.05
        ask(first, "How long does a turn take?")
        wait_for_reply(first, "more than long ones.")
        pipeline.pace.clear()
        ask(first, "And now?")
        wait_for_status(first, "hinking")
        ask(second, "Me too")
        wait_for_status(second, r"Waiting: 1 turn is before yours, about \d+ s")
        pipeline.pace.set()
        wait_for_reply(second, "more than long ones.")
