"""Which words were heard, from the samples that were played."""

from __future__ import annotations

import numpy as np
import pytest

from audio.playback import Playback

RATE = 1000


def tone(samples: int, silent_after: int | None = None) -> np.ndarray:
    pcm = np.full(samples, 8000, np.int16)
    if silent_after is not None:
        pcm[silent_after:] = 0
    return pcm


def playback(*segments: tuple[str, int]) -> Playback:
    made = Playback()
    for text, samples in segments:
        made.add(tone(samples), RATE, text)
    return made


@pytest.mark.parametrize(
    "played, heard",
    [
        (0, ""),
        (1, ""),
        (399, ""),
        (400, "four"),
        (899, "four"),
        (900, "four more"),
        (1300, "four more"),
        (1400, "four more and."),
        (1401, "four more and."),
        (2400, "four more and. second"),
        (99_999, "four more and. second part"),
    ],
)
def test_words_are_heard_when_their_last_letter_was_played(played: int, heard: str) -> None:
    made = playback(("four more and.", 1400), ("second part", 1000))
    if played == 2400:
        played = 1400 + 600
    made.report(played)
    assert made.heard() == heard


def test_the_silence_at_the_end_of_a_segment_holds_no_words() -> None:
    made = Playback()
    made.add(tone(2000, silent_after=1000), RATE, "one two")
    made.report(1000)
    assert made.heard() == "one two"


def test_reports_can_neither_go_back_nor_ahead() -> None:
    made = playback(("words", 100))
    made.report(80)
    made.report(10)
    assert made.played == 80
    made.report(10**9)
    assert made.played == 100


def test_finished_is_played_to_the_end_or_dropped() -> None:
    made = playback(("words", 100))
    assert made.playing and not made.finished
    made.report(100)
    assert not made.playing and not made.finished  # more may come
    made.ended = True
    assert made.finished
    cut = playback(("words", 100))
    cut.drop()
    assert cut.finished and cut.heard() == ""


def test_recent_is_what_the_room_may_still_give_back() -> None:
    made = playback(("long ago", 10_000), ("just now", 1000), ("not yet", 1000))
    made.report(11_000)
    assert made.recent(2.0) == "long ago just now"
    assert made.recent(0.5) == "just now"


def test_the_rate_does_not_change_within_a_turn() -> None:
    made = playback(("words", 100))
    with pytest.raises(ValueError, match="16000"):
        made.add(tone(10), 16000, "other")
