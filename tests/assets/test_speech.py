"""Speech models and voices by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assets import hub, speech
from assets.speech import locate_stt, locate_voice
from engine.errors import UnpausedError


@pytest.mark.parametrize("spec", ["stt", "tiny.en", "whisper-tiny.en", "Whisper-Tiny.EN"])
def test_the_default_speech_model_has_several_names(spec: str, whisper_dir: Path) -> None:
    assert locate_stt(spec) == whisper_dir


@pytest.mark.parametrize("spec", ["voice", "joe-us-medium", "en_US-joe-medium"])
def test_the_default_voice_has_several_names(spec: str, voice_path: Path) -> None:
    assert locate_voice(spec) == voice_path


def test_a_path_is_a_path(whisper_dir: Path, voice_path: Path) -> None:
    assert locate_stt(str(whisper_dir)) == whisper_dir
    assert locate_voice(str(voice_path)) == voice_path


@pytest.mark.parametrize("spec", ["tinny", "", "smollm2-135m-instruct", "voice"])
def test_an_unknown_speech_model_is_one_line(spec: str) -> None:
    with pytest.raises(UnpausedError, match="unknown speech model") as fault:
        locate_stt(spec)
    assert "large-v3" in str(fault.value) and "\n" not in str(fault.value)


@pytest.mark.parametrize("spec", ["joe", "", "en_US-joe", "stt", "../../etc-x-y-low"])
def test_an_unknown_voice_is_one_line(spec: str) -> None:
    with pytest.raises(UnpausedError, match="unknown voice") as fault:
        locate_voice(spec)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("spec", ["small", "someone/whisper-of-mine"])
def test_what_only_the_hub_has_is_asked_of_it(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def download(name: str, local: bool) -> str:
        asked.append((name, local))
        if local:
            raise OSError("not there")
        return "/somewhere"

    monkeypatch.setattr(speech, "_whisper", download)
    monkeypatch.setattr(hub, "offline", lambda: False)
    monkeypatch.setattr(hub, "reachable", lambda: True)
    assert locate_stt(spec) == Path("/somewhere")
    assert asked == [(spec, True), (spec, False)]


def test_a_voice_by_its_name_is_where_piper_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech, "_piper", lambda path, local: f"/hub/{path}")
    assert locate_voice("en_GB-alba-medium") == Path(
        "/hub/en/en_GB/alba/medium/en_GB-alba-medium.onnx"
    )


def test_offline_and_unreachable_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> str:
        raise OSError("not there")

    monkeypatch.setattr(speech, "_piper", absent)
    with pytest.raises(UnpausedError, match="HF_HUB_OFFLINE"):
        locate_voice("en_GB-alba-medium")
    monkeypatch.setattr(hub, "offline", lambda: False)
    monkeypatch.setattr(hub, "reachable", lambda: False)
    with pytest.raises(UnpausedError, match="cannot be reached"):
        locate_voice("en_GB-alba-medium")
    monkeypatch.setattr(hub, "reachable", lambda: True)
    with pytest.raises(UnpausedError, match="cannot be fetched: not there"):
        locate_voice("en_GB-alba-medium")
