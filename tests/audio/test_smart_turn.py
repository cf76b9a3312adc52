"""The judge of pauses, with its real weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assets.resolver import resolve
from audio.smart_turn import SmartTurn
from benchmarks.sounds import acoustic_bounds
from engine.errors import UnpausedError
from tests.audio.conftest import Say


@pytest.fixture(scope="module")
def judge() -> SmartTurn:
    return SmartTurn(resolve("turn"))


def paused(sound: np.ndarray, tail_s: float = 0.1) -> np.ndarray:
    end = acoustic_bounds(sound)[1]
    return np.concatenate([np.zeros(6400, np.float32), sound[:end], np.zeros(int(tail_s * 16000))])


@pytest.mark.real
@pytest.mark.parametrize(
    "text", ["What is the capital of France?", "Tell me a story about the sea.", "Thank you."]
)
def test_what_is_finished_sounds_so(judge: SmartTurn, say: Say, text: str) -> None:
    assert judge.probability(paused(say(text))) > 0.5


@pytest.mark.real
@pytest.mark.parametrize("text", ["I would like to", "Because", "So what I wanted to ask was"])
def test_what_breaks_off_sounds_so(judge: SmartTurn, say: Say, text: str) -> None:
    assert judge.probability(paused(say(text))) < 0.5


@pytest.mark.real
@pytest.mark.parametrize("seconds", [0.0, 0.01, 1.0, 8.0, 60.0])
def test_any_length_is_judged(judge: SmartTurn, seconds: float) -> None:
    assert 0.0 <= judge.probability(np.zeros(int(seconds * 16000), np.float32)) <= 1.0


@pytest.mark.real
def test_only_the_last_eight_seconds_count(judge: SmartTurn, say: Say) -> None:
    end = paused(say("Tell me a story about the sea."))
    last = np.concatenate([np.zeros(8 * 16000 - len(end), np.float32), end]).astype(np.float32)
    longer = np.concatenate([np.full(32000, 0.3, np.float32), last])
    assert judge.probability(longer) == pytest.approx(judge.probability(last), abs=1e-4)


@pytest.mark.real
def test_warming_tells_how_long_it_takes(judge: SmartTurn) -> None:
    assert 0 < judge.warm_ms() < 10_000


def test_a_file_that_is_no_model_is_one_line(tmp_path: Path, voice_path: Path) -> None:
    with pytest.raises(UnpausedError, match="no such file"):
        SmartTurn(tmp_path / "absent.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a network")
    with pytest.raises(UnpausedError, match="cannot load the turn model") as fault:
        SmartTurn(broken)
    assert "\n" not in str(fault.value)
    with pytest.raises(UnpausedError, match="no Smart Turn model"):
        SmartTurn(voice_path)
