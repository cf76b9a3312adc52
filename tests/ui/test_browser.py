"""The page in a real Chromium, with fakes for the models."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from tests.ui.browser import (
    ask,
    audible,
    chromium,
    free_port,
    replies,
    status,
    visit,
    wait_for_reply,
    wait_for_status,
)
from tests.ui.fakes import REPLY, FakeEntry, FakePipeline, services
from ui import page as page_module

pytestmark = pytest.mark.browser

ENGINES = [
    FakeEntry("eager", "Kernel per op"),
    FakeEntry("cpu", "Native"),
    FakeEntry("graph", "CUDA graph", reason="needs an NVIDIA GPU"),
]
RATE_HZ = 22050


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[page_module.Page, FakePipeline]]:
    pipeline = FakePipeline()
    running = page_module.start(services(pipeline, ENGINES), port=free_port())
    yield running, pipeline
    running.close()


@pytest.fixture
def pipeline(served: tuple[page_module.Page, FakePipeline]) -> Iterator[FakePipeline]:
    """The server's pipeline, as new."""
    running, made = served
    fresh = FakePipeline()
    for name in ("reply", "transcript", "fails", "word_s", "hold_after"):
        setattr(made, name, getattr(fresh, name))
    made.turns.clear()
    made.pace.set()
    yield made
    made.pace.set()
    running.visitors.close_all()


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Playwright, chromium_path: str) -> Iterator[Browser]:
    with chromium(playwright, chromium_path) as started:
        yield started


@pytest.fixture
def url(served: tuple[page_module.Page, FakePipeline], pipeline: FakePipeline) -> str:
    return served[0].url


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with visit(browser, url) as opened:
        yield opened


def test_a_typed_question_is_answered_in_text_voice_and_figures(page: Page) -> None:
    assert "Hold the dial" in page.inner_text("#conversation")
    ask(page, "Why is the sky blue?")
    wait_for_reply(page, REPLY)
    assert page.input_value("#prompt textarea") == ""
    page.wait_for_function("unpaused.stats.audible > 22050")
    assert page.inner_text("[data-part=tpot-p50]") == "18.4"
    assert page.inner_text("[data-part=rate]") == "54.3"
    names = page.locator("[data-part=stages] li > span:first-child").all_inner_texts()
    assert names == ["Prefill", "First clause", "Synthesis"]
    assert page.inner_text("[data-part=total]") == "291"


def test_a_reply_streams(page: Page, pipeline: FakePipeline) -> None:
    pipeline.hold_after = 4
    ask(page, "Why?")
    wait_for_reply(page, "The sky is blue.")
    assert replies(page) == ["The sky is blue."]
    pipeline.hold_after = None
    pipeline.pace.set()
    wait_for_reply(page, REPLY)


def test_holding_space_is_a_spoken_turn(page: Page) -> None:
    page.locator("body").focus()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.down("Space")
    wait_for_status(page, "Release to send")
    page.wait_for_timeout(1500)  # the fake microphone beeps once a second
    page.keyboard.up("Space")
    wait_for_reply(page, REPLY)
    assert "Why is the sky blue?" in page.inner_text("#conversation .user-row")
    page.wait_for_function("unpaused.stats.audible > 22050")
    names = page.locator("[data-part=stages] li > span:first-child").all_inner_texts()
    assert names[:2] == ["Endpointing", "Transcription"]


def test_holding_the_dial_is_a_spoken_turn(page: Page) -> None:
    page.hover("[data-part=talk]")
    page.mouse.down()
    wait_for_status(page, "Release to send")
    page.wait_for_timeout(1500)
    page.mouse.up()
    wait_for_reply(page, REPLY)


def test_hands_free_listens_until_switched_off(
    playwright: Playwright, chromium_path: str, url: str, tmp_path: Path
) -> None:
    wav = tmp_path / "hum.wav"
    write_hum(wav)
    with chromium(playwright, chromium_path, wav) as browser, visit(browser, url) as page:
        speak_hands_free(page)


def write_hum(path: Path) -> None:
    """Half a second of silence, a second of something like a voice, silence: 48 kHz PCM16."""
    times = np.arange(48000) / 48000
    voice = sum(np.sin(2 * np.pi * 140 * n * times) / n for n in range(1, 20))
    voice *= 0.3 * (0.6 + 0.4 * np.sin(2 * np.pi * 5 * times))
    samples = np.concatenate([np.zeros(24000), voice, np.zeros(96000)])
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(48000)
        file.writeframes((samples * 32767).clip(-32768, 32767).astype("<i2").tobytes())


def speak_hands_free(page: Page) -> None:
    switch = page.get_by_role("switch", name="Hands-free")
    switch.click()
    wait_for_status(page, "Listening")
    assert switch.get_attribute("aria-checked") == "true"
    wait_for_reply(page, REPLY)
    switch.click()
    assert switch.get_attribute("aria-checked") == "false"


def test_a_space_in_the_text_box_is_a_space(page: Page) -> None:
    page.click("#prompt textarea")
    page.keyboard.type("a b")
    assert page.input_value("#prompt textarea") == "a b"
    assert "Release" not in status(page)


def test_escape_stops_text_and_voice(page: Page, pipeline: FakePipeline) -> None:
    pipeline.hold_after = 5
    ask(page, "Why?")
    wait_for_reply(page, "The sky is blue. Short")
    page.wait_for_function("unpaused.stats.audible > 2000")
    page.keyboard.press("Escape")
    page.wait_for_function("!unpaused.active")
    heard = audible(page)
    wait_for_reply(page, "Stopped.")
    page.wait_for_timeout(300)
    assert audible(page) - heard < 0.1 * 48000
    assert page.locator("[data-part=stop]").is_disabled()
    assert REPLY not in replies(page)[0]


def test_the_stop_button_stops_the_playback_of_a_finished_reply(page: Page) -> None:
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    page.wait_for_function("unpaused.state.playing")
    page.get_by_role("button", name="Stop").click()
    page.wait_for_function("!unpaused.active")
    assert replies(page) == [REPLY]


def test_reloading_mid_reply_cancels_the_turn(
    browser: Browser, pipeline: FakePipeline, served: tuple[page_module.Page, FakePipeline]
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
        assert session.wait_idle(5)
        page.wait_for_function("window.unpaused && unpaused.state.socket === 'open'")
        assert page.locator("#conversation .message-row").count() == 0
        assert running.visitors.get(session.id) is None


def test_sound_off_means_no_sound(page: Page) -> None:
    page.get_by_role("switch", name="Sound").click()
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    page.wait_for_function("!unpaused.active")
    assert audible(page) == 0


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
    text = "<b>bold</b> <script>document.title='run'</script> 1 < 2 & 3"
    ask(page, text)
    wait_for_reply(page, REPLY)
    assert text in page.inner_text("#conversation .user-row")


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
    page.wait_for_function("document.querySelector('[data-part=total]').innerText !== '291'")


def test_engines_can_be_chosen_and_missing_ones_say_why(page: Page) -> None:
    page.locator("#engine").get_by_text("Native").click()
    page.wait_for_function("document.querySelector('#engine input[value=cpu]').checked")
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    assert page.locator("#engine input").count() == 2
    page.click("#missing-engines summary")
    assert "CUDA graph needs an NVIDIA GPU" in page.inner_text("#missing-engines")


def test_a_second_visitor_waits_and_sees_it(
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


def test_a_blocked_microphone_is_told_and_typing_works(
    playwright: Playwright, chromium_path: str, url: str
) -> None:
    with (
        chromium(playwright, chromium_path, microphone="deny") as blocked,
        visit(blocked, url) as page,
    ):
        page.get_by_role("switch", name="Hands-free").click()
        wait_for_status(page, "The microphone is blocked")
        ask(page, "Why?")
        wait_for_reply(page, REPLY)


def test_plain_http_from_elsewhere_is_explained(browser: Browser, url: str) -> None:
    insecure = """Object.defineProperty(navigator, 'mediaDevices', {value: undefined});
      Object.defineProperty(window, 'isSecureContext', {value: false});"""
    with visit(browser, url, insecure) as page:
        wait_for_status(page, "https")
        ask(page, "Why?")
        wait_for_reply(page, REPLY)


def test_a_lost_socket_reconnects(page: Page) -> None:
    page.evaluate("unpaused.worker.postMessage({type: 'drop'})")
    wait_for_status(page, "Reconnecting")
    wait_for_status(page, "Hold to talk")
    ask(page, "Why?")
    page.wait_for_function("unpaused.stats.audible > 22050")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(320, "dark"), (390, "light"), (768, "dark"), (1440, "light"), (2560, "dark")],
)
def test_every_width_shows_everything_without_scrolling_sideways(
    browser: Browser, url: str, width: int, scheme: str
) -> None:
    size = {"width": width, "height": 844}
    with visit(browser, url, viewport=size, color_scheme=scheme) as page:
        ask(page, "x" * 300)
        wait_for_reply(page, REPLY)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.documentElement.scrollHeight") <= 844
        for part in ("#conversation", "[data-part=talk]", "#send", "#new", "[data-part=tpot-p50]"):
            box = page.locator(part).bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
            assert box["y"] >= 0 and box["y"] + box["height"] <= 844
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, dark[4:-1].split(","))) < 64) == (scheme == "dark")


def test_text_has_contrast(browser: Browser, url: str) -> None:
    for scheme in ("light", "dark"):
        with visit(browser, url, color_scheme=scheme) as page:
            ask(page, "Why?")
            wait_for_reply(page, REPLY)
            page.wait_for_function("!unpaused.active")
            ratios = page.evaluate(CONTRAST)
            assert len(ratios) > 15
            assert min(ratios.values()) >= 4.5, sorted(ratios.items(), key=lambda r: r[1])[:3]


# Contrast of every visible text with what is painted behind it, by WCAG's formula.
CONTRAST = """() => {
  const channels = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const ratios = {};
  for (const element of document.querySelectorAll('#app *')) {
    const text = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim());
    const style = getComputedStyle(element);
    const hidden = style.visibility === 'hidden' || element.getClientRects().length === 0;
    if (hidden || !text.join('') || element.closest('.sr-only, .hide')) continue;
    const pair = [channels(style.color), behind(element)].map(luminance).sort((a, b) => b - a);
    const name = element.tagName + ' ' + text.join(' ').slice(0, 40);
    ratios[name] = (pair[0] + 0.05) / (pair[1] + 0.05);
  }
  return ratios;
}"""


def test_every_control_is_reached_by_the_keyboard_has_a_name_and_shows_focus(page: Page) -> None:
    wanted = ["Kernel per op", "New conversation", "Hands-free", "Sound", "Hold to talk", "Message"]
    names: list[str] = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(12):
        page.keyboard.press("Tab")
        name, outlined = page.evaluate(
            """() => {
              const at = document.activeElement;
              const label = at.labels && at.labels[0] && at.labels[0].innerText;
              const ring = [at, at.closest('label'), at.closest('#write')].filter(Boolean)
                .some((e) => getComputedStyle(e).outlineStyle !== 'none');
              return [(at.ariaLabel || label || at.innerText || '').trim(), ring];
            }"""
        )
        assert outlined or name not in wanted, name
        names.append(name)
    assert [name for name in names if name in wanted][: len(wanted)] == wanted
    assert "Send" in names


def test_enter_on_the_dial_toggles_listening(page: Page) -> None:
    page.focus("[data-part=talk]")
    page.keyboard.press("Enter")
    wait_for_status(page, "Release to send")
    page.wait_for_timeout(1500)
    page.keyboard.press("Enter")
    wait_for_reply(page, REPLY)
