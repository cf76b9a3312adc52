"""What is tried on the engines beside the conversation, in a real Chromium."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import wave
from contextlib import suppress
from io import BytesIO

import pytest
from playwright.sync_api import Browser, Page, TimeoutError

from tests.ui.browser import ask, visit, wait_for_end, wait_for_reply, wait_for_text
from tests.ui.fakes import REPLY, FakePipeline
from ui.replay import NOTE

pytestmark = pytest.mark.browser

PLAYED = "[data-part=lanes]:not([hidden])[data-playing=false]"


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).click()


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def played(page: Page, view: str, first: str = "") -> dict[str, list[str]]:
    """What a side-by-side view shows at its end, once its first lane is called `first` ..."""
    page.wait_for_function(
        """([view, first]) => document.querySelector(view)
          && document.querySelector(`${view} h3`).innerText.match(first)""",
        arg=[f"#{view} {PLAYED}", first],
    )
    parts = {"titles": "h3", "texts": ".said", "outcome": ".outcome", "badge": ".same"}
    return {
        name: page.locator(f"#{view} {selector}:visible").all_inner_texts()
        for name, selector in parts.items()
    }


def fetched(page: Page, link: str) -> bytes:
    """What a download link gives."""
    address = page.get_by_role("link", name=link).get_attribute("href")
    url = page.evaluate("address => new URL(address, document.baseURI).href", address)
    with urllib.request.urlopen(url, timeout=20) as answer:
        return bytes(answer.read())


# --- engines within one conversation ---


def test_every_answer_names_its_engine_and_its_figures(page: Page) -> None:
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    page.locator("#engine").get_by_text("Native").click()
    page.wait_for_function("document.querySelector('#notice').innerText.includes('Native')")
    # Again is then on the engine that was left.
    page.wait_for_function("document.querySelector('#again-on input').value === 'Kernel per op'")
    # The instruments go on saying whose figures they are.
    wait_for_text(page, "[data-part=engine-name]", "Kernel per op")
    ask(page, "And now?")
    page.wait_for_function("document.querySelectorAll('#conversation .figures').length === 2")
    labels = page.locator("#conversation .figures").all_inner_texts()
    assert labels == [
        "Kernel per op · fake · 54.3 tokens/s · TTFT 18.4 ms",
        "Native · fake · 250 tokens/s · TTFT 4.00 ms",
    ]
    page.wait_for_function(
        "document.querySelector('[data-part=engine-name]').innerText === 'Native'"
    )
    page.wait_for_function(f"document.querySelector('[data-part=strip]').dataset.tokens === '{14}'")


def test_an_answer_cut_at_the_limit_says_so(page: Page, pipeline: FakePipeline) -> None:
    pipeline.finish_reason = "length"
    ask(page, "Why?")
    page.wait_for_selector("#conversation .figures")
    assert "cut at the limit of 14 tokens" in page.inner_text("#conversation .figures")


def test_again_on_the_other_engine_stands_beside_the_first(page: Page) -> None:
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    wait_for_end(page)
    press(page, "Again on")
    shown = played(page, "duel")
    assert [title.split("\n")[0] for title in shown["titles"]] == ["Kernel per op", "Native"]
    assert shown["texts"] == [REPLY, REPLY]
    assert shown["badge"] == ["Identical: all 14 tokens are the same"]
    assert shown["outcome"] == ["Native wrote 4.6 times as fast as Kernel per op and was done "
                                "202 ms sooner."]  # fmt: skip
    strips = page.locator("#duel canvas.strip")
    page.wait_for_function(
        "[...document.querySelectorAll('#duel canvas')].every((c) => c.dataset.tokens === '14')"
    )
    assert strips.count() == 2
    assert page.locator("#conversation .user-row").count() == 1  # no part of the conversation
    press(page, "Close the comparison")
    page.wait_for_selector("#duel", state="hidden")


def test_again_before_anything_was_said_is_told(page: Page) -> None:
    page.evaluate("document.querySelector('#again-button').click()")
    page.wait_for_selector("#notice [role=alert]")
    assert "Ask something first" in page.inner_text("#notice")


def test_thinking_is_shown_before_and_after(page: Page) -> None:
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    press(page, "Think before speaking")
    slider = page.get_by_role("slider", name="Hidden tokens before the voice starts")
    slider.focus()
    for _ in range(10):
        slider.press("ArrowRight")
    slider.dispatch_event("pointerup")
    page.wait_for_function("document.querySelector('#silence').innerText.includes('at 100 tokens')")
    before = page.inner_text("#silence")
    assert "Kernel per op\nabout 1.84 s\nNative\n" in before and "forgets it" in before
    page.wait_for_function("location.search.includes('hidden=100')")
    ask(page, "And now?")
    page.wait_for_function("document.querySelector('#silence .after')")
    after = page.inner_text("#silence .after")
    assert after == "Kernel per op: 100 hidden tokens were 1.84 s of silence."
    assert "after 100 hidden tokens" in page.locator("#conversation .figures").last.inner_text()


# --- the tabs ---


def test_a_race_is_replayed_at_the_measured_pace(page: Page) -> None:
    open_tab(page, "Race")
    press(page, "Start the race")
    shown = played(page, "race-lanes")
    assert [title.split("\n")[0] for title in shown["titles"]] == ["Kernel per op", "Native"]
    assert shown["outcome"][0].startswith("Native wrote 4.6 times as fast")
    assert "ran first, by lot" in page.inner_text("#race-lanes .note")
    assert page.locator("#race-lanes .replay").is_visible()
    page.wait_for_function("document.querySelector('#race-lanes .clock').innerText === '0.26 s'")


@pytest.mark.parametrize("tab", ["Race", "Blind test"])
def test_a_race_without_a_prompt_or_a_rival_is_told_where_it_was_asked(
    page: Page, tab: str
) -> None:
    open_tab(page, tab)
    where = ".tabitem:not([style*=none])"
    page.fill(f"{where} textarea", "  ")
    start = page.locator(f"{where} .actions button").first
    start.click()
    page.wait_for_selector(f"{where} .notice [role=alert]")
    assert "empty" in page.inner_text(f"{where} .notice")
    page.fill(f"{where} textarea", "Why?")
    page.get_by_label("Engine 2").last.click()
    page.get_by_role("option", name="Kernel per op").click()
    told = page.locator(f"{where} .notice").get_by_text("different")
    for _ in range(30):  # while the first press is still being answered another one is not heard
        start.click()
        with suppress(TimeoutError):
            told.wait_for(timeout=2000)
            break
    assert told.is_visible()


def test_a_race_that_waits_shows_its_place(
    page: Page, browser: Browser, url: str, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 4
    ask(page, "First")
    wait_for_reply(page, "The sky is blue.")
    with visit(browser, f"{url}?view=race") as other:
        press(other, "Start the race")
        notice = other.locator("#race .notice").get_by_text("Waiting: 1 turn is before yours")
        notice.wait_for()
        pipeline.hold_after = None
        pipeline.pace.set()
        played(other, "race-lanes")
        notice.wait_for(state="hidden")


def test_the_speed_dial_is_marked_as_a_replay_everywhere(page: Page) -> None:
    open_tab(page, "Speed dial")
    press(page, "Replay the last answer")
    page.wait_for_selector("#dial .notice [role=alert]")
    open_tab(page, "Talk")
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    wait_for_end(page)
    open_tab(page, "Speed dial")
    page.locator("#dial fieldset").get_by_text("3,047").click()
    page.wait_for_function("document.querySelector('#dial input[type=number]').value === '3047'")
    press(page, "Replay the last answer")
    shown = played(page, "dial-lanes")
    assert shown["titles"][1].startswith("Replay at 3,047 tokens/s")
    assert "memory bandwidth were the only limit" in shown["titles"][1]
    assert page.locator("#dial-lanes .replay").is_visible()
    assert NOTE in page.inner_text("#dial-lanes .note") and "SemiAnalysis" in page.inner_text(
        "#dial-lanes .note"
    )
    exported = json.loads(fetched(page, "this replay, JSON"))
    assert exported["replay"] is True and exported["note"] == NOTE
    assert exported["stands_for"]["tokens_per_s"] == 3047
    assert page.locator("#sources tbody tr").count() == 5
    assert page.locator("#sources a[href^='https://']").count() == 5


def test_a_blind_trial_hides_the_engines_until_the_choice(page: Page) -> None:
    open_tab(page, "Blind test")
    choose = page.get_by_role("button", name="A was faster")
    assert choose.is_disabled()
    for number in range(1, 3):
        press(page, "Start a trial")
        shown = played(page, "blind-lanes", "^A$")
        assert shown["titles"] == ["A", "B"] and shown["outcome"] == []
        assert page.locator("#blind-lanes canvas").count() == 0
        page.wait_for_function(
            "!document.querySelector('#choose button').disabled"  # only now is there a choice
        )
        choose.click()
        page.wait_for_function(
            "n => document.querySelector('#standing').innerText.includes(`of ${n} times`)",
            arg=number,
        )
        assert choose.is_disabled()
        titles = played(page, "blind-lanes", "^A: ")["titles"]
        assert {title.split("\n")[0] for title in titles} in (
            {"A: Native", "B: Kernel per op"},
            {"A: Kernel per op", "B: Native"},
        )
    assert "p = " in page.inner_text("#standing")
    exported = json.loads(fetched(page, "the trials, JSON"))
    assert len(exported["trials"]) == 2 and exported["decided"] == 2
    assert {trial["choice"] for trial in exported["trials"]} == {"A"}


def test_a_link_opens_the_same_view(browser: Browser, url: str) -> None:
    with visit(browser, f"{url}?view=dial&engine=cpu&hidden=50&speed=170") as page:
        page.wait_for_function(
            "document.querySelector('#dial input[type=number]')?.value === '170'"
        )
        assert page.locator("[role=tab][aria-selected=true]").first.inner_text() == "Speed dial"
        assert page.locator("#engine input[value=cpu]").is_checked()
        open_tab(page, "Race")
        page.wait_for_function("location.search.includes('view=race')")
        assert "engine=cpu" in page.url and "hidden=50" in page.url
        open_tab(page, "Talk")
        page.wait_for_function("!location.search.includes('view=')")


def test_what_a_link_says_wrongly_is_told(browser: Browser, url: str) -> None:
    with visit(browser, f"{url}?engine=warp&hidden=9999") as page:
        page.wait_for_selector("#notice [role=alert]")
        told = page.inner_text("#notice")
        assert "engine=warp is none of eager, cpu" in told and "hidden=9999" in told


def test_the_hint_is_for_the_first_visit(browser: Browser, url: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    for first in (True, False):
        page.goto(url)
        page.wait_for_function("window.unpaused && unpaused.state.socket === 'open'")
        page.wait_for_function("document.querySelector('.hint')")
        assert page.locator(".hint").is_visible() == first
        assert page.locator(".hint p").count() == 2
        if first:
            press(page, "Got it")
    context.close()


def test_turns_and_the_session_can_be_taken_along(page: Page) -> None:
    page.mouse.click(1, 1)  # a gesture, so that there is sound
    for turns, question in enumerate(("Why?", "Why not?"), start=1):
        ask(page, question)
        wait_for_end(page, turns)
        page.wait_for_function("!unpaused.active")  # what is not heard is not exported
    press(page, "Again on")
    played(page, "duel")
    turn = json.loads(fetched(page, "turn, JSON"))
    assert turn["question"] == "Why not?" and turn["answer"] == REPLY
    assert turn["decode"]["engine"] == "eager" and len(turn["decode"]["tokens"]) == 14
    assert turn["decode"]["metrics"]["tpot_ms"]["p50"] == 18.4
    session = json.loads(fetched(page, "session, JSON"))
    assert [made["question"] for made in session["turns"]] == ["Why?", "Why not?"]
    assert session["comparisons"][0]["identical_tokens"] is True
    with wave.open(BytesIO(fetched(page, "turn, WAV"))) as one:
        seconds = one.getnframes() / one.getframerate()
    with wave.open(BytesIO(fetched(page, "session, WAV"))) as both:
        assert both.getnframes() / both.getframerate() > 1.5 * seconds > 1


def test_an_export_of_nothing_or_of_a_guess_is_a_line(page: Page, url: str) -> None:
    session = page.evaluate("unpaused.session")
    for path, words in (
        (f"{session}/turn.json", b"ask something first"),
        (f"{session}/turn.wav", b"ask something first"),
        (f"{session}/session.wav", b"nothing that could be exported"),
        (f"{session}/replay.json?tokens_per_s=x", b"ask something first"),
        (f"{session}/passwd", b"nothing called passwd"),
        ("guess/session.json", b"session has ended"),
    ):
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{url}export/{path}", timeout=20)
        assert words in refused.value.read()
