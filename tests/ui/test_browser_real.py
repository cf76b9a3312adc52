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

from tests.ui.browser import ask, chromium, free_port, replies, visit
from ui import page as page_module
from ui.services import Services

pytestmark = [pytest.mark.browser, pytest.mark.real]

QUESTION = "What is the capital of France?"
PATIENCE_MS = 60_000  # models load while the page is already up
MICROPHONE_HZ = 48000


@pytest.fixture(scope="module")
def real_services(smollm2_path: Path, whisper_dir: Path, voice_path: Path) -> Services:
    from audio.pipeline import VoicePipeline
    from audio.stt import Transcriber
    from audio.tts import Synthesizer
    from audio.vad import StreamingVad
    from engine.conversation import Conversation
    from engine.registry import ENGINES
    from engine.sampling import SamplingParams
    from engine.setup import open_engine, open_model
    from ui.services import Lazy

    model = Lazy(lambda: open_model("smollm2-135m-instruct", smollm2_path))
    return Services(
        model_name="smollm2-135m-instruct",
        engines=list(ENGINES.values()),
        default_engine="eager",
        params=SamplingParams(max_tokens=40),
        make_engine=lambda name: open_engine(name, model(), speaking=True),
        make_conversation=lambda: Conversation(model(), context=1024),
        make_pipeline=lambda: VoicePipeline(Transcriber(whisper_dir), Synthesizer(voice_path)),
        make_vad=StreamingVad,
    )


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


def test_a_typed_question_streams_an_answer(
    playwright: Playwright, chromium_path: str, url: str
) -> None:
    with chromium(playwright, chromium_path) as browser, visit(browser, url) as page:
        page.evaluate(
            """() => {
              window.lengths = new Set();
              new MutationObserver(() => {
                const row = document.querySelector('#conversation .bot-row .message-content');
                if (row) window.lengths.add(row.innerText.length);
              }).observe(document.body, {subtree: true, childList: true, characterData: true});
            }"""
        )
        ask(page, QUESTION)
        page.wait_for_function(
            "document.querySelector('[data-part=total]').innerText.match(/[0-9]/)",
            timeout=PATIENCE_MS,
        )
        assert "paris" in replies(page)[0].lower()
        assert page.evaluate("window.lengths.size") > 3  # it came in pieces
        for figure in ("tpot-p50", "tpot-p99", "ttft", "rate", "total"):
            assert float(page.inner_text(f"[data-part={figure}]").replace(",", "")) > 0


def test_a_spoken_question_is_understood_and_answered_aloud(
    playwright: Playwright, chromium_path: str, url: str, question_wav: Path
) -> None:
    with chromium(playwright, chromium_path, question_wav) as browser, visit(browser, url) as page:
        page.get_by_role("switch", name="Hands-free").click()
        page.wait_for_selector("#conversation .user-row", timeout=PATIENCE_MS)
        heard = page.inner_text("#conversation .user-row .message-content")
        assert words(heard) == words(QUESTION)
        page.wait_for_function("unpaused.stats.audible > 10000", timeout=PATIENCE_MS)
        page.wait_for_function("!unpaused.active", timeout=PATIENCE_MS)
        assert len(words(replies(page)[0])) > 2
        assert page.evaluate("unpaused.stats.trimmed") == 0
        names = page.locator("[data-part=stages] li > span:first-child").all_inner_texts()
        wanted = ["Endpointing", "Transcription", "Prefill engine", "First clause engine"]
        wanted += ["Synthesis", "Network", "Playback"]
        assert [name for name in names if name in wanted] == wanted
