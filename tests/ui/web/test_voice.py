"""The voice of the page in a real Chromium: dial, hands-free, stop, faults of the microphone."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Playwright

from tests.ui.browser import (
    ask,
    audible,
    chromium,
    replies,
    status,
    visit,
    wait_for_reply,
    wait_for_status,
)
from tests.ui.fakes import REPLY, FakePipeline

pytestmark = pytest.mark.browser


def hear_beep(page: Page) -> None:
    """Until the microphone has heard the beep that the fake one makes, and others after it."""
    page.wait_for_function("Math.max(...unpaused.dial.levels) > 0.3", polling=100)
    page.wait_for_timeout(1500)  # it makes one a second: this is how long the person speaks


def test_holding_space_is_a_spoken_turn(page: Page) -> None:
    page.locator("body").focus()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.down("Space")
    wait_for_status(page, "Release to send")
    hear_beep(page)
    page.keyboard.up("Space")
    wait_for_reply(page, REPLY)
    assert "Why is the sky blue?" in page.inner_text("#conversation .user-row")
    page.wait_for_function("unpaused.stats.audible > 22050")
    page.wait_for_selector("[data-part=stages] li")
    names = page.locator("[data-part=stages] li > span:first-child").all_inner_texts()
    assert names[:2] == ["Endpointing", "Transcription"]


def test_holding_the_dial_is_a_spoken_turn(page: Page) -> None:
    page.hover("[data-part=talk]")
    page.mouse.down()
    wait_for_status(page, "Release to send")
    hear_beep(page)
    page.mouse.up()
    wait_for_reply(page, REPLY)


def test_enter_on_the_dial_toggles_listening(page: Page) -> None:
    page.focus("[data-part=talk]")
    page.keyboard.press("Enter")
    wait_for_status(page, "Release to send")
    hear_beep(page)
    page.keyboard.press("Enter")
    wait_for_reply(page, REPLY)


def test_hands_free_listens_until_switched_off(
    playwright: Playwright, chromium_path: str, url: str, tmp_path: Path
) -> None:
    wav = tmp_path / "hum.wav"
    write_hum(wav)
    with chromium(playwright, chromium_path, wav) as browser, visit(browser, url) as page:
        speak_hands_free(page)


def test_speaking_over_a_reply_pauses_it_at_once_and_is_answered(
    playwright: Playwright, chromium_path: str, url: str, pipeline: FakePipeline, tmp_path: Path
) -> None:
    pipeline.transcript = "What about tomorrow?"
    pipeline.reply = " ".join([REPLY] * 6)
    wav = tmp_path / "hum.wav"
    # The second talks over the reply to the first, which takes 21 s: it may begin 8 s late.
    write_hum(wav, times=2, rest_s=8.0)
    with chromium(playwright, chromium_path, wav) as browser, visit(browser, url) as page:
        page.evaluate(
            """() => {
              window.told = [];
              document.addEventListener("unpaused", ({ detail }) => told.push(detail));
            }"""
        )
        page.get_by_role("switch", name="Hands-free").click()
        page.wait_for_function("told.filter(({ type }) => type === 'turn').length >= 2")
        kinds = page.evaluate("told.map(({ type }) => type)")
        assert kinds.index("pause") < kinds.index("flush")
        assert page.evaluate("unpaused.stats.audible") > 5000
        page.wait_for_function("told.some(({ type }) => type === 'measured')")
        measured = page.evaluate("told.find(({ type }) => type === 'measured')")
        names = [stage["name"] for stage in measured["stages"]]
        assert names[-2:] == ["transport", "playback"]
        assert measured["stages"][-1]["ms"] > 0


def write_hum(path: Path, times: int = 1, rest_s: float = 2.0) -> None:
    """Half a second of silence, a second of something like a voice, a rest: 48 kHz PCM16.

    All of it so many `times`.
    """
    at = np.arange(48000) / 48000
    voice = sum(np.sin(2 * np.pi * 140 * n * at) / n for n in range(1, 20))
    voice *= 0.3 * (0.6 + 0.4 * np.sin(2 * np.pi * 5 * at))
    samples = np.tile(
        np.concatenate([np.zeros(24000), voice, np.zeros(int(48000 * rest_s))]), times
    )
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
    pipeline.reply = f"{'word ' * 79}end. And more."  # 20 s of speech
    pipeline.hold_after = 81
    ask(page, "Why?")
    page.wait_for_function("unpaused.stats.audible > 2000")
    page.keyboard.press("Escape")
    page.wait_for_function("!unpaused.active")
    wait_for_reply(page, "Stopped.")
    heard = -1
    while heard != audible(page):  # reports of what was played before may still be on their way
        heard = audible(page)
        page.wait_for_timeout(500)
    assert heard < 15 * 44100
    assert page.locator("[data-part=stop]").is_disabled()
    assert "more" not in replies(page)[0]


def test_the_stop_button_stops_the_playback_of_a_finished_reply(page: Page) -> None:
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    page.wait_for_function("unpaused.state.playing")
    page.get_by_role("button", name="Stop").click()
    page.wait_for_function("!unpaused.active")
    assert replies(page) == [REPLY]


def test_sound_off_means_no_sound(page: Page) -> None:
    page.get_by_role("switch", name="Sound").click()
    ask(page, "Why?")
    wait_for_reply(page, REPLY)
    page.wait_for_function("!unpaused.active")
    assert audible(page) == 0


def test_sound_is_made_ready_before_a_gesture_and_rests_while_it_is_off(page: Page) -> None:
    """Making it ready in the gesture would hold the page up while somebody types."""
    switch = page.get_by_role("switch", name="Sound")
    page.wait_for_function("unpaused.audio.context?.state === 'suspended'")
    page.mouse.click(1, 1)
    page.wait_for_function("unpaused.audio.context.state === 'running'")
    switch.click()
    page.wait_for_function("unpaused.audio.context.state === 'suspended'")
    switch.click()
    page.wait_for_function("unpaused.audio.context.state === 'running'")


def test_permission_denied_is_told_and_typing_works(
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


def test_plain_http_from_another_host_says_why_the_microphone_is_missing(
    browser: Browser, url: str
) -> None:
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
