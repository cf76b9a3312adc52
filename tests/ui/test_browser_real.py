"""The whole thing: real weights, a real Chromium, a recorded voice for a microphone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from playwright.sync_api import Playwright, sync_playwright

from benchmarks.served import free_port
from tests.ui.browser import ask, chromium, replies, visit, wait_for_end
from tests.ui.real import real_services as make_services
from ui import page as page_module
from ui.services import Services

pytestmark = [pytest.mark.browser, pytest.mark.real]

QUESTION = "What is the capital of France?"
MICROPHONE_HZ = 48000


@pytest.fixture(scope="module")
def real_services(smollm2_path: Path, whisper_dir: Path, voice_path: Path) -> Services:
    return make_services(smollm2_path, whisper_dir, voice_path, max_tokens=40)


@pytest.fixture(scope="module")
def url(real_services: Services) -> Iterator[str]:
    running = page_module.start(real_services, port=free_port())
    yield running.url
    running.close()


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def question_wav(voice_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second of silence, the question, silence: 48 kHz, as a microphone gives it."""
    from audio.tts import Synthesizer

    voice = Synthesizer(voice_path)
    spoken = voice.synthesize(QUESTION).astype(np.float32) / 32768
    spoken = soxr.resample(spoken, voice.rate_hz, MICROPHONE_HZ)
    silence = np.zeros(MICROPHONE_HZ, np.float32)
    path = tmp_path_factory.mktemp("microphone") / "question.wav"
    soundfile.write(path, np.concatenate([silence, spoken, *[silence] * 8]), MICROPHONE_HZ)
    return path


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def test_a_typed_question_is_answered_with_figures(
    playwright: Playwright, chromium_path: str, url: str
) -> None:
    with chromium(playwright, chromium_path) as browser, visit(browser, url) as page:
        ask(page, QUESTION)
        wait_for_end(page)
        assert "paris" in replies(page)[0].lower()
        for figure in ("tpot-p50", "tpot-p99", "ttft", "rate", "total"):
            page.wait_for_function(
                """part => Number(document.querySelector(`[data-part=${part}]`).innerText
                  .replace(",", "")) > 0""",
                arg=figure,
            )


def test_a_spoken_question_is_understood_and_answered_aloud(
    playwright: Playwright, chromium_path: str, url: str, question_wav: Path
) -> None:
    with chromium(playwright, chromium_path, question_wav) as browser, visit(browser, url) as page:
        page.get_by_role("switch", name="Hands-free").click()
        page.wait_for_selector("#conversation .user-row")
        heard = page.inner_text("#conversation .user-row .message-content")
        assert words(heard) == words(QUESTION)
        page.wait_for_function("unpaused.stats.audible > 10000")
        page.wait_for_function("!unpaused.active")
        assert len(words(replies(page)[0])) > 2
        assert page.evaluate("unpaused.stats.trimmed") == 0
        names = page.locator("[data-part=stages] li > span:first-child").all_inner_texts()
        wanted = ["Endpointing", "Transcription", "Prefill engine", "First clause engine"]
        wanted += ["Synthesis", "Network", "Playback"]
        assert [name for name in names if name in wanted] == wanted
