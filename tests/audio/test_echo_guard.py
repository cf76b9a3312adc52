"""The loudspeaker's own sound in the microphone, told from anybody else's."""

from __future__ import annotations

import numpy as np
import pytest

from audio.echo_guard import EchoGuard

RATE_HZ = 22050
MICROPHONE_HZ = 16000
BEGAN = 50_000  # the microphone's sample at which the reply began to sound


def voice(seed: int, seconds: float = 3.0, rate_hz: int = RATE_HZ) -> np.ndarray:
    """float32 [n]: harmonics of a wandering pitch, syllables, and some breath."""
    rng = np.random.default_rng(seed)
    times = np.arange(int(seconds * rate_hz)) / rate_hz
    pitch = 120 + 20 * rng.random() + 15 * np.sin(2 * np.pi * (0.5 + rng.random()) * times)
    phase = 2 * np.pi * np.cumsum(pitch) / rate_hz
    voiced = sum(np.sin(n * phase + rng.random() * 6) / n for n in range(1, 20))
    syllables = 0.55 + 0.45 * np.sin(2 * np.pi * 4 * times + rng.random() * 6)
    breath = 0.1 * rng.standard_normal(len(times))
    return (0.1 * (np.asarray(voiced) * syllables + breath)).astype(np.float32)


def guard(seed: int = 1) -> EchoGuard:
    made = EchoGuard()
    pcm = (voice(seed) * 32767).astype(np.int16)
    for at in range(0, len(pcm), 5000):
        made.spoken(1, pcm[at : at + 5000], RATE_HZ)
    made.located(1, 1.0, BEGAN + MICROPHONE_HZ)
    return made


def echo(seed: int, start_s: float, seconds: float, gain: float = 0.2, late_s: float = 0.08,
         noise: float = 0.0) -> tuple[np.ndarray, int]:  # fmt: skip
    """What the microphone hears of the reply from `start_s` of it on, and from which sample."""
    from audio.frames import Resampler

    played = Resampler(RATE_HZ, MICROPHONE_HZ).push(voice(seed), last=True)
    first = int(start_s * MICROPHONE_HZ)
    heard = gain * played[first : first + int(seconds * MICROPHONE_HZ)]
    heard = heard + noise * np.random.default_rng(9).standard_normal(len(heard))
    return heard.astype(np.float32), BEGAN + first + int(late_s * MICROPHONE_HZ)


@pytest.mark.parametrize("seconds", [0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("late_s", [0.0, 0.08, 0.4])
def test_an_echo_is_like_what_was_played(seconds: float, late_s: float) -> None:
    samples, start = echo(1, 0.5, seconds, late_s=late_s)
    assert guard().likeness(samples, start) > 0.6


def test_a_quiet_echo_in_a_noisy_room_still_is() -> None:
    samples, start = echo(1, 0.5, 1.0, gain=0.1, noise=0.002)
    assert guard().likeness(samples, start) > 0.3


@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_another_voice_is_not(seed: int) -> None:
    samples, start = echo(seed, 0.5, 1.0)
    assert guard().likeness(samples, start) < 0.3


def test_what_was_played_long_before_is_no_echo() -> None:
    samples, _ = echo(1, 0.2, 0.5)
    assert guard().likeness(samples, BEGAN + int(2.4 * MICROPHONE_HZ)) < 0.3


def test_an_echo_with_a_pause_of_the_player_in_it_is_told_by_its_longest_part() -> None:
    first, _ = echo(1, 0.2, 0.15)
    second, start = echo(1, 0.5, 0.5)
    gap = np.zeros(4000, np.float32)
    both = np.concatenate([first, gap, second])
    assert guard().likeness(both, start - len(first) - len(gap)) > 0.6


@pytest.mark.parametrize("gap_s", [0.2, 0.6])
def test_an_echo_ducked_and_paused_in_the_middle_of_a_syllable_is(gap_s: float) -> None:
    made = guard()
    first, start = echo(1, 0.2, 0.2)
    second, _ = echo(1, 0.4, 0.2)
    first[1200:] *= 0.25
    second[1200:] *= 0.25
    gap = np.zeros(int(gap_s * MICROPHONE_HZ), np.float32)
    made.interrupted()
    made.located(1, 0.6, BEGAN + len(gap) + int(0.6 * MICROPHONE_HZ))  # later by the pause
    assert made.likeness(np.concatenate([first, gap, second]), start) > 0.5


def test_a_question_that_ended_just_before_is_not_compared() -> None:
    made = guard()
    samples, start = echo(1, 0.0, 0.3, late_s=0.0)
    question = 5 * voice(7, 0.6, MICROPHONE_HZ)
    silence = np.zeros(MICROPHONE_HZ // 2, np.float32)
    heard = np.concatenate([question, silence, samples])
    assert made.likeness(heard, start - len(question) - len(silence)) > 0.6


def test_the_less_there_is_the_less_it_proves() -> None:
    long, start = echo(1, 0.5, 0.3)
    assert guard().likeness(long[:1600], start) < 0.8 * guard().likeness(long, start)


@pytest.mark.parametrize("samples", [np.zeros(0), np.zeros(16000), np.zeros(100)])
def test_silence_is_like_nothing(samples: np.ndarray) -> None:
    assert guard().likeness(samples.astype(np.float32), BEGAN) == 0.0


def test_before_anything_was_played_nothing_is_an_echo() -> None:
    samples, start = echo(1, 0.5, 1.0)
    made = EchoGuard()
    assert made.likeness(samples, start) == 0.0
    made.spoken(1, np.ones(RATE_HZ, np.int16), RATE_HZ)
    assert made.likeness(samples, start) == 0.0  # nobody has said that it sounded
    made.located(2, 1.0, BEGAN)  # another reply's report
    assert made.likeness(samples, start) == 0.0


def test_late_reports_do_not_move_the_beginning() -> None:
    made = guard()
    for late in range(10):
        made.located(1, 1.0 + 0.1 * late, BEGAN + int((1.0 + 0.1 * late) * MICROPHONE_HZ) + 900)
    samples, start = echo(1, 0.5, 1.0)
    assert made.likeness(samples, start) > 0.6


def test_memory_is_bounded() -> None:
    made = EchoGuard()
    second = np.ones(MICROPHONE_HZ, np.int16)
    for _ in range(500):
        made.spoken(1, second, MICROPHONE_HZ)
    assert made._samples <= 121 * MICROPHONE_HZ
