"""espeak-ng leaves nothing behind, and says what it said."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from piper import PiperVoice, espeakbridge

from audio.phonemes import Espeak
from audio.tts import Synthesizer
from ui.memory import heap_in_use

TEXTS = ("Ready.", "The sky is blue, and so is the sea; why? Because!", "Ein café in München.", "")
CALLS = 200


class Bridge:
    """A stand-in for `piper.espeakbridge` that remembers its voices, and maybe its `clause`."""

    def __init__(self, clause: tuple[str, str, bool] | None = None) -> None:
        self.voices: list[str] = []
        self._clause = clause

    def initialize(self, data_dir: str) -> None:
        pass

    def set_voice(self, voice: str) -> None:
        self.voices.append(voice)
        if voice == "none":
            raise RuntimeError("no such voice")

    def get_phonemes(self, text: str) -> list[tuple[str, str, bool]]:
        return [self._clause or (text[:1] + text[1:], ".", True)]


def test_a_voice_is_chosen_when_it_changes() -> None:
    bridge = Bridge()
    espeak = Espeak(bridge)
    for voice in ("en", "en", "de", "en"):
        espeak.set_voice(voice)
    assert bridge.voices == ["en", "de", "en"]
    with pytest.raises(RuntimeError, match="no such voice"):
        espeak.set_voice("none")
    espeak.set_voice("en")  # which voice it has now nobody knows
    espeak.initialize("elsewhere")
    espeak.set_voice("en")
    assert bridge.voices[3:] == ["none", "en", "en"]


def test_phonemes_are_those_of_the_bridge(voice_path: Path) -> None:
    Synthesizer(voice_path).warm()  # initialises espeak-ng
    for voice in ("en-us", "de"):
        espeakbridge.set_voice(voice)
        expected = [espeakbridge.get_phonemes(text) for text in TEXTS]
        espeak = Espeak(espeakbridge)
        espeak.set_voice(voice)
        assert [espeak.get_phonemes(text) for text in TEXTS] == expected
        assert [espeak.get_phonemes(text) for text in TEXTS] == expected
    espeakbridge.set_voice("en-us")


@pytest.mark.skipif(heap_in_use() is None, reason="this C library does not tell what is in use")
def test_clauses_leave_nothing_behind(synthesizer: Synthesizer) -> None:
    voice: PiperVoice = synthesizer._voice
    for text in TEXTS:
        voice.phonemize(text)
    gc.collect()
    heap, blocks = heap_in_use() or 0, sys.getallocatedblocks()
    for _ in range(CALLS):
        voice.phonemize(TEXTS[1])
    gc.collect()
    assert ((heap_in_use() or 0) - heap) / CALLS < 100  # the copy of a voice has 1,360
    assert (sys.getallocatedblocks() - blocks) / CALLS < 2  # its four clauses have eight


def test_what_others_keep_is_not_touched() -> None:
    """A clause with as many references as it should have, and one that is handed out again."""
    for bridge in (Bridge(), Bridge(clause=("a", ".", bool(TEXTS)))):  # no constant of this file
        espeak = Espeak(bridge)
        (clause,) = espeak.get_phonemes("a")
        before = sys.getrefcount(clause)
        for _ in range(3):
            espeak.get_phonemes("a")
        assert sys.getrefcount(clause) == before
