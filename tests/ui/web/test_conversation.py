"""The conversation in a real Chromium: answers, faults, visitors, engines."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from tests.ui.browser import (
    ask,
    replies,
    visit,
    wait_for_end,
    wait_for_reply,
    wait_for_status,
    wait_for_text,
)
from tests.ui.fakes import REPLY, FakePipeline
from tests.ui.web.conftest import Served

pytestmark = pytest.mark.browser


def test_a_typed_question_is_answered_in_text_voice_and_figures(page: Page) -> None:
    assert "Hold the dial" in page.inner_text("#conversation")
    ask(page, "Why is the sky blue?")
    wait_for_reply(page, REPLY)
    assert page.input_value("#prompt textarea") == ""
    page.wait_for_function("unpaused.stats.audible > 22050")
    wait_for_text(page, "[data-part=tpot-p50]", "18.4")
    wait_for_text(page, "[data-part=rate]", "54.3")
    page.wait_for_function("document.querySelector('[data-part=verdict]').innerText !== ''")
    names = page.locator("[data-part=stages] li > span:first-child").all_inner_texts()
    parts = [name for name in names if name != "Queue"]  # a wait only where there was one
    assert parts[:2] == ["Prefill engine", "First clause engine"]
    assert page.inner_text("[data-part=verdict]").startswith("The engine was ")
    assert page.inner_text("[data-part=turn-of]") == "Last turn, on Kernel per op"


def test_a_reply_streams(page: Page, pipeline: FakePipeline) -> None:
    pipeline.hold_after = 4
    ask(page, "Why?")
    wait_for_reply(page, "The sky is blue.")
    assert replies(page) == ["The sky is blue."]
    pipeline.hold_after = None
    pipeline.pace.set()
    wait_for_reply(page, REPLY)


def test_a_page_reloaded_mid_reply_cancels_the_turn(
    browser: Browser, pipeline: FakePipeline, served: Served
) -> None:
    running, _ = served
    pipeline.hold_after = 4
    # Gradio logs the stream that it gave up.
    with visit(browser, running.url, tolerated="AbortError|Connection errored out") as page:
        ask(page, "Why?")
        wait_for_reply(page, "The sky is blue.")
        session = running.visitors.get(page.evaluate("unpaused.session"))
        assert session is not None and session.view().running
        page.reload()
        assert session.wait_idle(60)
        page.wait_for_function("window.unpaused && unpaused.state.socket === 'open'")
        assert page.locator("#conversation .message-row").count() == 0
        for _ in range(600):  # a minute
            if running.visitors.get(session.id) is None:
                break
            page.wait_for_timeout(100)
        assert running.visitors.get(session.id) is None


def test_a_failed_turn_says_why_and_keeps_the_text(page: Page, pipeline: FakePipeline) -> None:
    pipeline.fails = "The voice is missing."
    ask(page, "Why?")
    wait_for_reply(page, "The voice is missing.")
    page.wait_for_function("document.querySelector('#prompt textarea').value === 'Why?'")


def test_what_cannot_start_is_told_beside_the_text_box(page: Page) -> None:
    page.click("#send")
    page.wait_for_selector("#notice [role=alert]")
    assert page.inner_text("#notice") == "Write something first."


def test_what_a_person_writes_is_shown_as_it_is(page: Page) -> None:
    text = (
        "<b>bold</b> <script>document.title='run'</script> 1 < 2 & 3\n"
        "# no *heading*, `code` or https://link.test\n\n- nor a\n    list  with   spaces &amp; $x$"
    )
    ask(page, text)
    wait_for_reply(page, REPLY)
    assert page.inner_text("#conversation .user-row .typed") == text
    marks = "strong, em, code, pre, h1, li, a, b, script"
    assert page.locator("#conversation .user-row").locator(marks).count() == 0
    wait_for_end(page)
    assert page.title() == "Unpaused"


def test_a_reply_can_neither_run_nor_fetch_anything(
    browser: Browser, url: str, pipeline: FakePipeline
) -> None:
    pipeline.reply = (
        "See <img src=x onerror=\"document.title='run'\"> and "
        "![](http://elsewhere.test/a.png) <iframe src='http://elsewhere.test'></iframe> done"
    )
    # The browser reports what it kept from being fetched.
    with visit(browser, url, tolerated="(elsewhere.test|404)") as page:
        ask(page, "Why?")
        wait_for_reply(page, "done")
        page.wait_for_timeout(300)
        assert page.title() == "Unpaused"


def test_a_new_conversation_is_empty(page: Page) -> None:
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    page.click("#new")
    page.wait_for_function("document.querySelectorAll('#conversation .message-row').length === 0")
    page.wait_for_function("document.querySelector('[data-part=total]').innerText.length === 1")


def test_engines_can_be_chosen_and_missing_ones_say_why(page: Page) -> None:
    page.locator("#engine").get_by_text("Native").click()
    page.wait_for_function("document.querySelector('#engine input[value=cpu]').checked")
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    assert page.locator("#engine input").count() == 2
    page.click("#missing-engines summary")
    assert "CUDA graph needs an NVIDIA GPU" in page.inner_text("#missing-engines")


def test_two_visitors_queue_and_the_second_sees_its_place(
    page: Page, browser: Browser, url: str, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 4
    ask(page, "First")
    wait_for_reply(page, "The sky is blue.")
    with visit(browser, url) as other:
        ask(other, "Second")
        wait_for_status(other, "Waiting: 1 turn is before yours")
        pipeline.hold_after = None
        pipeline.pace.set()
        wait_for_reply(other, REPLY)
        assert "First" not in other.inner_text("#conversation")
    wait_for_reply(page, REPLY)
