"""Own sound in the microphone: cancelled, or not listened to."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from audio.echo import Echo, HalfDuplex, Headset, WebRtc, choose_echo

RATE_HZ = 16_000
BLOCK = 640  # 40 ms, as some systems hand over


def chatter(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise that comes and goes as syllables do: float32 [n]."""
    rng = np.random.default_rng(seed)
    n = int(seconds * RATE_HZ)
    loudness = np.abs(np.sin(np.arange(n) * 2 * np.pi * 2 / RATE_HZ)) ** 2
    return (rng.standard_normal(n) * loudness * 0.1).astype(np.float32)


def in_room(far: np.ndarray, delay_ms: float) -> np.ndarray:
    """What a microphone hears of `far`, late and with a room's reflections."""
    rng = np.random.default_rng(9)
    response = rng.standard_normal(2400) * np.exp(-np.arange(2400) / 400) * 0.05
    response[0] = 0.7
    late = np.concatenate([np.zeros(int(delay_ms * 16)), np.convolve(far, response)])
    return late[: len(far)].astype(np.float32)


def run(echo: Echo, near: np.ndarray, far: np.ndarray, ahead_ms: float) -> np.ndarray:
    """Feed both as streams do: what is played is known `ahead_ms` before it is heard."""
    parts, known = [], 0
    for at in range(0, len(near), BLOCK):
        until = min(len(far), at + BLOCK + int(ahead_ms * 16))
        parts.append(echo.process(near[at : at + BLOCK], far[known:until], (known - at) / 16))
        known = until
    return np.concatenate(parts)


def level_db(samples: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(np.square(samples)) + 1e-12))


@pytest.mark.parametrize(("acoustic_ms", "ahead_ms"), [(2, 80), (40, 80), (5, 0), (10, 300)])
def test_an_echo_is_cancelled(acoustic_ms: float, ahead_ms: float) -> None:
    pytest.importorskip("livekit", reason="livekit is not installed")
    far = chatter(5)
    near = in_room(far, acoustic_ms)
    left = run(WebRtc(), near, far, ahead_ms)
    later = slice(2 * RATE_HZ, None)  # it needs a moment to learn the room
    assert level_db(near[later]) - level_db(left[later]) > 20
    assert len(near) - len(left) < RATE_HZ // 100


def test_a_voice_over_the_echo_comes_through() -> None:
    pytest.importorskip("livekit", reason="livekit is not installed")
    far = chatter(6)
    voice = np.zeros_like(far)
    voice[4 * RATE_HZ : 5 * RATE_HZ] = 2 * chatter(1, seed=5)
    left = run(WebRtc(), in_room(far, 5) + voice, far, 80)
    during, before = left[4 * RATE_HZ : 5 * RATE_HZ], left[3 * RATE_HZ : 4 * RATE_HZ]
    assert level_db(during) > level_db(voice[4 * RATE_HZ : 5 * RATE_HZ]) - 10
    assert level_db(during) > level_db(before) + 15


def test_far_sound_that_runs_ahead_is_bounded() -> None:
    pytest.importorskip("livekit", reason="livekit is not installed")
    echo = WebRtc()
    for _ in range(20):
        echo.process(np.zeros(160, np.float32), chatter(1), 500.0)
    assert len(echo._far) <= 50


@pytest.mark.parametrize("delay_ms", [-5000.0, 5000.0])
def test_times_that_cannot_be_are_borne(delay_ms: float) -> None:
    """As of streams that have just begun, or of systems that do not know them."""
    pytest.importorskip("livekit", reason="livekit is not installed")
    echo = WebRtc()
    for far in (chatter(0.1), chatter(0)):
        assert len(echo.process(chatter(0.1), far, delay_ms)) == 1600


def test_half_duplex_is_deaf_while_the_loudspeaker_sounds_and_a_little_longer() -> None:
    far = np.zeros(3 * RATE_HZ, np.float32)
    far[RATE_HZ : 2 * RATE_HZ] = chatter(1)
    near = np.full_like(far, 0.1)
    heard = run(HalfDuplex(), near, far, ahead_ms=80)
    deaf = np.flatnonzero(heard == 0) / RATE_HZ
    assert deaf.min() <= 1.0  # never after the sound has begun
    assert 2.1 < deaf.max() < 2.6
    assert heard[int(0.8 * RATE_HZ)] == heard[int(2.7 * RATE_HZ)] == np.float32(0.1)


def test_a_headset_hears_all() -> None:
    near = chatter(1)
    assert Headset().process(near, near, 0.0) is near


def test_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choose_echo(headset=True), Headset)
    monkeypatch.setitem(sys.modules, "livekit", None)
    monkeypatch.setitem(sys.modules, "livekit.rtc", None)
    chosen = choose_echo(headset=False)
    assert isinstance(chosen, HalfDuplex) and not chosen.full_duplex
