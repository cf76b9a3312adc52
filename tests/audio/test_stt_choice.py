"""Where speech is transcribed, and in which language, with a stand-in for Whisper itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from audio import stt, whisper
from audio.stt import Transcriber
from audio.whisper import pick_device
from engine.errors import UnpausedError


class FakeTokenizer:
    def __init__(self, _: Any, multilingual: bool, task: str, language: str) -> None:
        self.language, self.multilingual = language, multilingual

    def decode(self, ids: list[int]) -> str:
        return f"{self.language}: {' '.join(map(str, ids))}"


class FakeModel:
    """CTranslate2's side: hears `language`, and always the same words."""

    def __init__(self, multilingual: bool, language: str) -> None:
        self.is_multilingual, self.language = multilingual, language
        self.detections, self.n_mels = 0, 80
        self.broken = False

    def encode(self, features: Any, to_cpu: bool = False) -> str:
        if self.broken:
            raise RuntimeError("libcudnn is not there")
        return "encoded"

    def detect_language(self, encoded: str) -> list[list[tuple[str, float]]]:
        self.detections += 1
        return [[(f"<|{self.language}|>", 0.9), ("<|en|>", 0.1)]]

    def generate(self, encoded: str, prompts: list[list[str]], **_: Any) -> list[Any]:
        return [SimpleNamespace(sequences_ids=[[1, 2]], no_speech_prob=0.1, scores=[-0.2])]


class FakeWhisper:
    made: ClassVar[list[dict[str, Any]]] = []  # of all, cleared by the fixture
    multilingual = False
    language = "de"
    broken = False

    def __init__(self, path: str, **options: Any) -> None:
        FakeWhisper.made.append(options)
        self.model = FakeModel(FakeWhisper.multilingual, FakeWhisper.language)
        self.model.broken = FakeWhisper.broken and options["device"] == "cuda"
        self.hf_tokenizer = None
        self.max_length = 448
        self.supported_languages = ["de", "en", "fr"] if FakeWhisper.multilingual else ["en"]

    def get_prompt(self, tokenizer: FakeTokenizer, *_: Any, **__: Any) -> list[str]:
        return [tokenizer.language]

    def feature_extractor(self, window: np.ndarray, padding: int = 0) -> np.ndarray:
        return np.zeros((80, len(window) // 160 + 1), np.float32)


FakeWhisper.feature_extractor.hop_length = 160  # type: ignore[attr-defined]


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("model.bin", "config.json", "tokenizer.json"):
        (tmp_path / name).write_text("x")
    FakeWhisper.made.clear()
    FakeWhisper.multilingual, FakeWhisper.language, FakeWhisper.broken = False, "de", False
    monkeypatch.setattr(whisper, "WhisperModel", FakeWhisper)
    monkeypatch.setattr(stt, "Tokenizer", FakeTokenizer)
    monkeypatch.setattr(stt, "get_suppressed_tokens", lambda *_: [])
    return tmp_path


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(whisper.ctranslate2, "get_cuda_device_count", lambda: count)


def speech() -> np.ndarray:
    return np.zeros(16000, np.float32)


def test_a_gpu_is_used_when_there_is_one(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)
    assert Transcriber(model_dir).device == "cuda"
    assert FakeWhisper.made[-1]["device"] == "cuda"
    assert FakeWhisper.made[-1]["compute_type"] == "float16"


def test_without_a_gpu_it_is_the_cpu(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    assert Transcriber(model_dir).device == "cpu"
    assert FakeWhisper.made[-1]["device"] == "cpu"
    assert FakeWhisper.made[-1]["compute_type"] == "int8"


def test_a_gpu_whose_libraries_are_missing_leaves_it_to_the_cpu(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 1)
    FakeWhisper.broken = True
    assert Transcriber(model_dir).device == "cpu"
    assert [made["device"] for made in FakeWhisper.made] == ["cuda", "cpu"]


def test_the_cpu_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)
    assert pick_device("cpu") == "cpu"


def test_a_gpu_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    with pytest.raises(UnpausedError, match="no CUDA GPU"):
        pick_device("cuda")


def test_an_english_model_hears_english(model_dir: Path) -> None:
    transcriber = Transcriber(model_dir, device="cpu")
    assert transcriber.language == "en"
    decoded = transcriber._decode(speech(), 10.0)
    assert decoded.text == "en: 1 2"
    assert transcriber._whisper.model.detections == 0


def test_an_english_model_knows_no_other_language(model_dir: Path) -> None:
    with pytest.raises(UnpausedError, match="English only"):
        Transcriber(model_dir, language="de", device="cpu")


def test_a_multilingual_model_tells_the_language_of_each_utterance(model_dir: Path) -> None:
    FakeWhisper.multilingual = True
    transcriber = Transcriber(model_dir, device="cpu")
    assert transcriber.language is None
    assert transcriber._decode(speech(), 10.0).text == "de: 1 2"
    transcriber._whisper.model.language = "fr"
    assert transcriber._decode(speech(), 10.0).text == "fr: 1 2"


def test_a_language_that_is_given_is_not_detected(model_dir: Path) -> None:
    FakeWhisper.multilingual = True
    transcriber = Transcriber(model_dir, language="fr", device="cpu")
    assert transcriber._decode(speech(), 10.0).text == "fr: 1 2"
    assert transcriber._whisper.model.detections == 0


def test_an_unknown_language_is_one_line(model_dir: Path) -> None:
    FakeWhisper.multilingual = True
    with pytest.raises(UnpausedError, match="unknown language 'xx'; known: de, en, fr"):
        Transcriber(model_dir, language="xx", device="cpu")
