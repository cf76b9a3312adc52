from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from audio.stt import Transcriber, _pieces
from audio.vad import BLOCK
from engine.errors import UnpausedError
from tests.audio.conftest import Say
from tests.audio.words import errors, words

RATE_HZ = 16000
RNG = np.random.default_rng(3)


pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    "sentence",
    [
        "Yes.",
        "Stop.",
        "What time is it?",
        "What is the capital of France?",
        "Can you explain how a bicycle stays upright?",
        "I would like to know what the weather will be like this weekend in London.",
        "My neighbour bought a small boat last summer, and every evening he sails around the "
        "island with his two children and their dog.",
    ],
)
def test_words_of_a_sentence(transcriber: Transcriber, say: Say, sentence: str) -> None:
    transcript = transcriber.transcribe(say(sentence))
    spelling = transcript.text.replace("neighbor", "neighbour")
    assert errors(sentence, spelling) == 0, transcript
    assert transcript.no_speech_prob < 0.6 and transcript.avg_logprob > -1
    assert transcript.ms > 0


@pytest.mark.parametrize("sentence", ["Why is the sky blue?", "My name is Peter."])
def test_another_voice(transcriber: Transcriber, say_robotic: Say, sentence: str) -> None:
    transcript = transcriber.transcribe(say_robotic(sentence))
    assert errors(sentence, transcript.text) <= 1, transcript


@pytest.mark.parametrize("sentence", ["Yes.", "No.", "Stop.", "Hello there.", "Five, five."])
def test_short_utterances_are_not_repeated(
    transcriber: Transcriber, say: Say, sentence: str
) -> None:
    transcript = transcriber.transcribe(say(sentence))
    assert len(words(transcript.text)) <= len(words(sentence)), transcript


def test_with_noise(transcriber: Transcriber, say: Say) -> None:
    sentence = "Please remind me to call my mother tomorrow morning at nine."
    clean = say(sentence)
    level = np.sqrt(np.mean(clean**2)) * 10 ** (-15 / 20)
    noisy = clean + (level * RNG.standard_normal(len(clean))).astype(np.float32)
    assert errors(sentence.replace("nine", ""), transcriber.transcribe(noisy).text) <= 2


def sounds() -> dict[str, np.ndarray]:
    count = 3 * RATE_HZ
    at = np.arange(count) / RATE_HZ
    noise = RNG.standard_normal(count)
    burst = np.zeros(count)
    burst[RATE_HZ : RATE_HZ + 2400] = noise[:2400] * np.exp(-np.arange(2400) / 500)
    return {
        "nothing": np.zeros(0),
        "one sample": np.zeros(1),
        "silence": np.zeros(count),
        "white noise": 0.1 * noise,
        "loud noise": 0.5 * noise,
        "fan": np.convolve(noise, np.ones(40) / 40, "same"),
        "mains hum": 0.2 * np.sin(2 * np.pi * 60 * at) + 0.05 * np.sin(2 * np.pi * 180 * at),
        "tone": 0.3 * np.sin(2 * np.pi * 440 * at),
        "cough": burst,
    }


@pytest.mark.parametrize("name", sounds())
def test_what_is_not_speech_has_no_words(transcriber: Transcriber, name: str) -> None:
    transcript = transcriber.transcribe(sounds()[name].astype(np.float32))
    assert transcript.text == ""
    assert transcript.no_speech_prob == 1.0


@pytest.mark.parametrize("name", ["silence", "white noise", "mains hum", "tone"])
def test_the_model_s_own_gates_hold_without_the_detector(
    transcriber: Transcriber, name: str
) -> None:
    assert not transcriber._decode_piece(sounds()[name].astype(np.float32)).speech


def test_a_monologue_past_whisper_s_window(transcriber: Transcriber, say: Say) -> None:
    sentences = [
        "When I was young my grandfather used to tell me long stories about the sea.",
        "He talked about storms and whales and lonely lighthouses.",
        "I would fall asleep dreaming that I was the captain of a great wooden ship.",
        "Could you give me a simple recipe for pancakes?",
        "I also want to know how hot the pan should be.",
    ]
    speech = [say(sentence) for sentence in sentences * 3]
    samples = np.concatenate(speech)
    assert len(samples) > 40 * RATE_HZ
    expected = " ".join(sentences * 3)
    found = transcriber.transcribe(samples).text
    assert errors(expected, found) <= len(words(expected)) // 10, found


def test_pieces_are_cut_in_pauses_and_hold_every_sample() -> None:
    samples = np.arange(80 * RATE_HZ, dtype=np.float32)
    probabilities = np.ones(-(-len(samples) // BLOCK), np.float32)
    pauses_s = [7, 20, 41, 55]
    for pause_s in pauses_s:
        at = pause_s * RATE_HZ // BLOCK
        probabilities[at - 10 : at + 10] = 0.1
    pieces = list(_pieces(samples, probabilities))
    np.testing.assert_array_equal(np.concatenate(pieces), samples)
    cuts_s = np.cumsum([len(piece) for piece in pieces])[:-1] / RATE_HZ
    np.testing.assert_allclose(cuts_s, [20, 41, 56], atol=1)
    assert max(map(len, pieces)) <= 27 * RATE_HZ


def test_threads_may_share_it(transcriber: Transcriber, say: Say) -> None:
    sentences = ["What time is it?", "What is the capital of France?"]
    spoken = [say(sentence) for sentence in sentences]
    found: dict[int, str] = {}

    def work(index: int) -> None:
        found[index] = transcriber.transcribe(spoken[index]).text

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [words(found[0]), words(found[1])] == [words(sentence) for sentence in sentences]


def test_not_a_model(tmp_path: Path, whisper_dir: Path) -> None:
    with pytest.raises(UnpausedError, match="no Whisper model"):
        Transcriber(tmp_path / "none")
    with pytest.raises(UnpausedError, match=r"no Whisper model.*model\.bin"):
        Transcriber(tmp_path)
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        (tmp_path / name).write_bytes((whisper_dir / name).read_bytes())
    (tmp_path / "model.bin").write_bytes(b"not a model")
    with pytest.raises(UnpausedError, match="cannot load") as caught:
        Transcriber(tmp_path)
    assert "\n" not in str(caught.value)


def test_threads_are_checked(whisper_dir: Path) -> None:
    with pytest.raises(UnpausedError, match="1 thread"):
        Transcriber(whisper_dir, threads=0)
