"""The endpointer against scripts: runs of (milliseconds, probability), in blocks of 32 ms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from audio.acoustic_end import acoustic_end
from audio.endpointing import (
    Endpointer,
    EndpointingConfig,
    SpeechEnded,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
    speech_end,
)

RATE_HZ = 16000
BLOCK = 512
BLOCK_MS = 32

Script = list[tuple[int, float]]


def run(script: Script, config: EndpointingConfig | None = None) -> list[object]:
    """Push the script; each block holds its own probability as level, so cuts can be told."""
    endpointer = Endpointer(config)
    events: list[object] = []
    for duration_ms, probability in script:
        for _ in range(duration_ms // BLOCK_MS):
            block = np.full(BLOCK, probability if probability >= 0.35 else 0.0, np.float32)
            events.extend(endpointer.push(probability, block))
    return events


def ended(events: list[object]) -> list[SpeechEnded]:
    return [event for event in events if isinstance(event, SpeechEnded)]


@pytest.mark.parametrize(
    "name, script, turns",
    [
        ("silence", [(3200, 0.0)], 0),
        ("noise below the threshold", [(3200, 0.45)], 0),
        ("a click", [(640, 0.0), (32, 0.9), (960, 0.0)], 0),
        ("a cough", [(640, 0.0), (192, 0.9), (960, 0.0)], 0),
        ("two coughs with a pause", [(192, 0.9), (960, 0.0), (192, 0.9), (960, 0.0)], 0),
        ("yes", [(640, 0.0), (288, 0.9), (960, 0.0)], 1),
        ("one question", [(640, 0.0), (1600, 0.9), (960, 0.0)], 1),
        ("a pause inside", [(960, 0.9), (384, 0.0), (960, 0.9), (960, 0.0)], 1),
        ("two questions", [(960, 0.9), (960, 0.0), (960, 0.9), (960, 0.0)], 2),
        ("unsure in between", [(640, 0.9), (960, 0.4), (640, 0.9), (960, 0.0)], 1),
        ("unsure at the start", [(640, 0.4), (960, 0.0)], 0),
        ("speech that goes on", [(960, 0.9), (480, 0.0)], 0),
    ],
)
def test_scripts(name: str, script: Script, turns: int) -> None:
    events = run(script)
    assert len(ended(events)) == turns, name
    starts = [event for event in events if isinstance(event, SpeechStarted)]
    assert len(starts) == turns or name == "speech that goes on"


def test_start_is_told_after_the_minimum_and_names_where_it_began() -> None:
    script: Script = [(640, 0.0), (192, 0.9)]
    assert run(script) == []
    assert run([*script, (32, 0.9)]) == [SpeechStarted(start_sample=640 * 16)]


def test_samples_have_pre_roll_and_post_roll() -> None:
    (turn,) = ended(run([(640, 0.0), (960, 0.9), (960, 0.0)]))
    end = (640 + 960) * 16
    assert turn.end_of_speech_sample == end
    assert turn.start_sample == (640 - 416) * 16  # 400 ms in whole blocks
    assert len(turn.samples) == end + 200 * 16 - turn.start_sample
    np.testing.assert_array_equal(turn.samples[: 416 * 16], 0)
    np.testing.assert_array_equal(turn.samples[416 * 16 : -200 * 16], np.float32(0.9))


def test_pre_roll_ends_at_the_first_sample_ever_heard() -> None:
    (turn,) = ended(run([(96, 0.0), (640, 0.9), (640, 0.0)]))
    assert turn.start_sample == 0


def test_wait_is_counted_from_the_acoustic_end() -> None:
    (turn,) = ended(run([(960, 0.9), (960, 0.0)]))
    assert turn.silence_ms == 512  # 500 ms in whole blocks


def test_a_detector_that_hangs_on_hides_no_wait() -> None:
    endpointer = Endpointer()
    events: list[object] = []
    for index in range(60):
        probability = 0.9 if index < 33 else 0.0  # 96 ms longer than there is sound
        level = 0.5 if index < 30 else 0.0
        events += endpointer.push(probability, np.full(BLOCK, level, np.float32))
    (turn,) = ended(events)
    assert turn.end_of_speech_sample == 30 * BLOCK
    assert turn.silence_ms == 512 + 3 * BLOCK_MS


def test_second_utterance_is_heard_with_its_pre_roll() -> None:
    first, second = ended(run([(960, 0.9), (544, 0.0), (960, 0.9), (960, 0.0)]))
    speech = (960 + 544) * 16
    assert second.start_sample <= speech - 400 * 16
    assert second.end_of_speech_sample == speech + 960 * 16
    assert first.end_of_speech_sample == 960 * 16


def test_endless_speech_is_cut_and_nothing_is_lost_or_doubled() -> None:
    config = EndpointingConfig(max_utterance_s=2.0)
    endpointer = Endpointer(config)
    pieces: list[np.ndarray] = []
    most = 0
    for index in range(400):
        block = np.full(BLOCK, index, np.float32)
        for event in endpointer.push(0.9 if index < 300 else 0.0, block):
            if isinstance(event, SpeechEnded):
                pieces.append(event.samples)
                most = max(most, len(event.samples))
    assert most <= 2.0 * RATE_HZ + BLOCK
    heard = np.concatenate(pieces)
    np.testing.assert_array_equal(heard[: 300 * BLOCK], np.repeat(np.arange(300), BLOCK))


def test_memory_is_bounded_in_silence_and_in_speech() -> None:
    endpointer = Endpointer(EndpointingConfig(max_utterance_s=3.0))
    for probability in (0.0, 0.9):
        for _ in range(2000):
            endpointer.push(probability, np.zeros(BLOCK, np.float32))
            held = sum(map(len, endpointer._before)) + sum(map(len, endpointer._blocks))
            assert held <= 3.5 * RATE_HZ


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("hangover_ms", [0, 40, 136])
def test_acoustic_end(noise: float, hangover_ms: int) -> None:
    rng = np.random.default_rng(1)
    samples = (noise * rng.standard_normal(RATE_HZ)).astype(np.float32)
    samples[: RATE_HZ // 2] += 0.3 * rng.standard_normal(RATE_HZ // 2).astype(np.float32)
    found = acoustic_end(samples, RATE_HZ // 2 + hangover_ms * 16)
    assert found == RATE_HZ // 2


def test_acoustic_end_of_pure_noise_is_the_detector_s() -> None:
    samples = np.random.default_rng(1).standard_normal(RATE_HZ).astype(np.float32)
    assert acoustic_end(samples, 8000) == 8000
    assert acoustic_end(np.zeros(RATE_HZ, np.float32), 8000) == 8000
    assert acoustic_end(np.zeros(0, np.float32), 0) == 0


def loudness(block: np.ndarray) -> float:
    """A detector for tests."""
    return float(np.abs(block).max())


def recording(*parts: tuple[int, float]) -> np.ndarray:
    return np.concatenate([np.full(ms * 16, level, np.float32) for ms, level in parts])


def test_speech_of_a_recording_ends_with_its_last_utterance() -> None:
    one = recording((1000, 0.0), (1000, 0.9), (1000, 0.0))
    two = recording((500, 0.0), (500, 0.9), (2000, 0.0), (500, 0.8), (900, 0.0))
    assert speech_end(one, loudness) == pytest.approx(2000 * 16, abs=BLOCK)
    assert speech_end(two, loudness) == pytest.approx(3500 * 16, abs=BLOCK)


def test_a_recording_that_ends_in_speech_goes_on_in_silence() -> None:
    samples = recording((300, 0.0), (700, 0.9))
    assert speech_end(samples, loudness) == pytest.approx(len(samples), abs=BLOCK)


@pytest.mark.parametrize(
    "samples", [np.zeros(0, np.float32), recording((3000, 0.0)), recording((500, 0.0), (150, 0.9))]
)
def test_a_recording_without_speech(samples: np.ndarray) -> None:
    assert speech_end(samples, loudness) is None


def stuck(block: np.ndarray) -> float:
    return 1.0


def test_a_recording_is_over_with_a_detector_that_never_falls_silent() -> None:
    detector: Callable[[np.ndarray], float] = stuck
    assert speech_end(recording((1000, 0.5)), detector) is None


# Pauses, and what is thought of them


def pauses(events: list[object]) -> list[str]:
    return [type(event).__name__ for event in events]


def feed(endpointer: Endpointer, *script: tuple[int, float]) -> list[object]:
    """(blocks, probability) of 512 samples each."""
    told: list[object] = []
    for blocks, probability in script:
        for _ in range(blocks):
            told += endpointer.push(probability, np.full(512, probability / 10, np.float32))
    return told


def test_a_pause_is_told_after_three_silent_blocks_and_taken_back_by_the_next_word() -> None:
    endpointer = Endpointer()
    assert pauses(feed(endpointer, (10, 0.9), (2, 0.0))) == ["SpeechStarted"]
    (paused,) = feed(endpointer, (1, 0.0))
    assert isinstance(paused, SpeechPaused) and paused.number == 1
    assert paused.end_of_speech_sample == 10 * 512
    assert paused.silence_ms == 96
    (resumed,) = feed(endpointer, (1, 0.9))
    assert resumed == SpeechResumed(1)
    (again,) = feed(endpointer, (3, 0.0))
    assert isinstance(again, SpeechPaused) and again.number == 2
    assert len(again.samples) > len(paused.samples)


@pytest.mark.parametrize(
    "complete, blocks", [(True, 6), (None, 16), (False, 32)], ids=["yes", "unjudged", "no"]
)
def test_how_long_a_pause_must_be_depends_on_the_judgement(
    complete: bool | None, blocks: int
) -> None:
    endpointer = Endpointer()
    feed(endpointer, (10, 0.9), (3, 0.0))
    if complete is not None:
        assert endpointer.judge(1, complete) == []
    assert feed(endpointer, (blocks - 4, 0.0)) == []
    (ended,) = feed(endpointer, (1, 0.0))
    assert isinstance(ended, SpeechEnded) and ended.pause == 1
    assert ended.silence_ms == blocks * 32


def test_a_judgement_that_comes_late_ends_the_utterance_at_once() -> None:
    endpointer = Endpointer()
    feed(endpointer, (10, 0.9), (12, 0.0))
    (ended,) = endpointer.judge(1, True)
    assert isinstance(ended, SpeechEnded) and ended.silence_ms == 12 * 32
    assert not endpointer.active


def test_a_judgement_of_another_pause_is_ignored() -> None:
    endpointer = Endpointer()
    feed(endpointer, (10, 0.9), (3, 0.0), (2, 0.9), (3, 0.0))
    assert endpointer.judge(1, True) == [] and endpointer.judge(3, True) == []
    assert feed(endpointer, (4, 0.0)) == []  # the second pause is not judged
    feed(endpointer, (2, 0.9))
    assert endpointer.judge(2, True) == []  # and is over now


def test_a_judgement_does_not_outlive_its_pause() -> None:
    endpointer = Endpointer()
    feed(endpointer, (10, 0.9), (3, 0.0))
    endpointer.judge(1, True)
    feed(endpointer, (1, 0.9), (3, 0.0))
    assert feed(endpointer, (6, 0.0)) == []


def test_the_last_word_is_not_part_of_the_next_utterance() -> None:
    endpointer = Endpointer()
    feed(endpointer, (10, 0.9), (3, 0.0))
    endpointer.judge(1, True)
    told = feed(endpointer, (4, 0.0), (10, 0.8), (3, 0.0))
    paused = told[-1]
    assert isinstance(paused, SpeechPaused)
    assert paused.samples.max() == pytest.approx(0.08)  # of the second, not the first's 0.09


def test_so_far_is_the_utterance_under_way() -> None:
    endpointer = Endpointer()
    feed(endpointer, (4, 0.0), (5, 0.9))
    samples, first = endpointer.so_far()
    assert len(samples) == 9 * 512 and first == 0
    assert endpointer.received == 9 * 512
