from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from audio.frames import STT_RATE_HZ, Resampler, from_pcm16
from audio.stt import Transcriber
from audio.tts import Cancel, Synthesizer, lower_thread_priority, trim
from engine.errors import UnpausedError
from tests.audio.words import errors

pytestmark = pytest.mark.real


def silent_ms(samples: np.ndarray, rate_hz: int) -> int:
    """Of the end of int16 [n]."""
    audible = np.flatnonzero(np.abs(samples.astype(int)) > 0.005 * 32767)
    return (len(samples) - 1 - int(audible[-1])) * 1000 // rate_hz


def test_speech_is_understood(synthesizer: Synthesizer, transcriber: Transcriber) -> None:
    sentence = "The weather was warm and sunny, so we walked along the river to the old mill."
    pcm = synthesizer.synthesize(sentence)
    assert pcm.dtype == np.int16 and synthesizer.rate_hz == 22050
    samples = Resampler(synthesizer.rate_hz, STT_RATE_HZ).push(from_pcm16(pcm), last=True)
    assert errors(sentence, transcriber.transcribe(samples).text) <= 3  # it varies by design


@pytest.mark.parametrize("text", ["", "   ", "...", "—", "😀", "\n\n", "\0", "\ud800"])
def test_nothing_to_say_is_silent(synthesizer: Synthesizer, text: str) -> None:
    assert len(synthesizer.synthesize(text)) == 0


@pytest.mark.parametrize(
    "text", ["a\0b hello", "hi \ud800 there", "[[ not phonemes ]]", "数字 hello"]
)
def test_odd_text_is_spoken(synthesizer: Synthesizer, text: str) -> None:
    assert len(synthesizer.synthesize(text)) > synthesizer.rate_hz // 5


def test_level_is_audible_and_not_clipped(synthesizer: Synthesizer) -> None:
    for text in ("Yes.", "Sure, here is what I know about it,", "Hello there! How are you today?"):
        peak = np.abs(synthesizer.synthesize(text).astype(int)).max()
        assert 0.2 * 32767 < peak < 32767, text


@pytest.mark.parametrize(
    "text, gap_ms",
    [("Here it is.", 160), ('"Here it is."', 160), ("Here it is,", 80), ("here it is", 40)],
)
def test_silence_after_it_is_a_short_gap(synthesizer: Synthesizer, text: str, gap_ms: int) -> None:
    silence_ms = silent_ms(synthesizer.synthesize(text), synthesizer.rate_hz)
    # The voice varies from run to run; its own silence, 135 ms or more, is never lengthened.
    assert min(gap_ms, 135) - 1 <= silence_ms <= gap_ms + 1


def test_trim() -> None:
    samples = np.zeros(3000, np.float32)
    samples[1000:2000] = 0.5
    assert len(trim(samples, 1000, 300)) == 10 + 1000 + 300
    assert len(trim(samples, 1000, 5000)) == 10 + 2000  # never longer than it was
    assert len(trim(samples * 0.001, 1000, 300)) == 0
    assert len(trim(samples[:0], 1000, 300)) == 0


LONG = "Once upon a time there was an old man who lived alone in a small house by the sea. " * 40


def test_cancel_ends_a_synthesis_under_way(synthesizer: Synthesizer) -> None:
    cancel = Cancel()
    started = threading.Event()
    found: list[np.ndarray] = []

    def work() -> None:
        started.set()
        found.append(synthesizer.synthesize(LONG, cancel))

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    cancel.set()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert len(found[0]) == 0
    assert len(synthesizer.synthesize("And nothing after it.", cancel)) == 0
    assert len(synthesizer.synthesize("But others go on.")) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="a priority per thread is Linux's")
def test_priority_is_the_thread_s_own() -> None:
    found: list[int] = []

    def work() -> None:
        lower_thread_priority()
        lower_thread_priority()  # changes no more
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] == min(19, before + 5)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_not_a_voice(tmp_path: Path, voice_path: Path) -> None:
    with pytest.raises(UnpausedError, match="no such file"):
        Synthesizer(tmp_path / "none.onnx")
    voice = tmp_path / "voice.onnx"
    voice.write_bytes(b"not a network")
    with pytest.raises(UnpausedError, match=r"no such file: .*\.json"):
        Synthesizer(voice)
    config = tmp_path / "voice.onnx.json"
    for content in ("not json", "{}", Path(f"{voice_path}.json").read_text()):
        config.write_text(content)
        with pytest.raises(UnpausedError, match="cannot load") as caught:
            Synthesizer(voice)
        assert "\n" not in str(caught.value)
    with pytest.raises(UnpausedError, match="1 thread"):
        Synthesizer(voice_path, threads=0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_long_clause_needed_goes_back_to_the_system(synthesizer: Synthesizer) -> None:
    def resident_mb() -> float:
        return psutil.Process().memory_info().rss / 1e6

    synthesizer.synthesize("and on we went past fields and rivers " * 6 + ".")
    needed = resident_mb()
    synthesizer.tidy()
    assert resident_mb() < needed - 20
    assert len(synthesizer.synthesize("It still speaks."))
