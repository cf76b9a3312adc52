from __future__ import annotations

import numpy as np
import pytest
from faster_whisper.vad import get_vad_model

from audio.vad import BLOCK, StreamingVad

RNG = np.random.default_rng(7)
NOISE = (RNG.standard_normal(40 * BLOCK) * 0.1).astype(np.float32)


def test_stream_equals_batch_and_faster_whisper() -> None:
    vad = StreamingVad()
    blocks = NOISE.reshape(-1, BLOCK)
    streamed = np.array([vad.probability(block) for block in blocks])
    vad.reset()
    np.testing.assert_allclose(vad.probabilities(NOISE), streamed, atol=1e-6)
    theirs = get_vad_model()(NOISE.copy()).reshape(-1)  # blanks the end of what it is given
    np.testing.assert_allclose(streamed[:-1], theirs[:-1], atol=1e-6)


def test_state_matters_and_reset_forgets_it() -> None:
    vad = StreamingVad()
    first = vad.probabilities(NOISE)
    again = vad.probabilities(NOISE)
    vad.reset()
    assert not np.array_equal(first, again)
    np.testing.assert_array_equal(vad.probabilities(NOISE), first)


def test_two_microphones_do_not_share_state() -> None:
    alone, first, second = StreamingVad(), StreamingVad(), StreamingVad()
    expected = [alone.probability(block) for block in NOISE.reshape(-1, BLOCK)]
    found = []
    for block in NOISE.reshape(-1, BLOCK):
        found.append(first.probability(block))
        second.probability(block[::-1].copy())
    assert found == expected


@pytest.mark.parametrize("samples", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_batch_counts_a_last_partial_block(samples: int) -> None:
    assert len(StreamingVad().probabilities(NOISE[:samples])) == -(-samples // BLOCK)


@pytest.mark.parametrize("samples", [0, 511, 513])
def test_wrong_block_size_is_a_defect(samples: int) -> None:
    with pytest.raises(ValueError, match="512"):
        StreamingVad().probability(np.zeros(samples, np.float32))


def hum() -> np.ndarray:
    at = np.arange(16000 * 4) / 16000
    return (0.2 * np.sin(2 * np.pi * 60 * at) + 0.05 * np.sin(2 * np.pi * 180 * at)).astype("f4")


@pytest.mark.parametrize("samples", [np.zeros(64000, np.float32), NOISE, NOISE * 3, hum()])
def test_silence_noise_and_hum_are_not_speech(samples: np.ndarray) -> None:
    assert StreamingVad().probabilities(samples).max() < 0.5
