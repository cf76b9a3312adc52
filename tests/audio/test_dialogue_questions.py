"""A question and its answer, in a room without models."""

from __future__ import annotations

import numpy as np
import pytest

from audio.dialogue import DialogueConfig
from audio.dialogue_events import Measured, RoundBegan
from tests.audio.people import QUESTION, REPLY, asked, company
from tests.audio.room import Costs

FIRST_SOUND_MS = 104 + 152 + 40 + 48 + 72  # silence, transcription, prefill, clause, synthesis


def test_a_question() -> None:
    there = company()
    there.room.quiet(0.5).hear(there.say(QUESTION)).until_idle()
    assert there.room.turns == [QUESTION]
    assert there.room.over == [("complete", REPLY)]
    assert there.talk.said() == [QUESTION, REPLY]


def test_the_reply_is_ready_when_the_turn_is_confirmed_so_nothing_is_waited_for_twice() -> None:
    there = asked()
    (measured,) = there.room.of(Measured)
    assert measured.total_ms == pytest.approx(FIRST_SOUND_MS, abs=10)
    names = [stage.name for stage in measured.stages]
    assert names == [
        "endpointing",
        "transcription",
        "prefill",
        "first_clause",
        "synthesis",
        "transport",
        "playback",
    ]


@pytest.mark.parametrize("transcribe_ms", [10, 60, 150, 700])
@pytest.mark.parametrize("synthesis_ms", [5, 70, 400])
def test_the_stages_sum_to_the_silence_that_was_heard(
    transcribe_ms: float, synthesis_ms: float
) -> None:
    costs = Costs(transcribe=transcribe_ms, synthesis=synthesis_ms, judge=30)
    there = company(costs=costs)
    room = there.room.quiet(0.48).hear(there.say(QUESTION, 0.992))
    end_s = 0.48 + 0.992
    room.until_audible()
    (measured,) = room.of(Measured)
    assert sum(stage.ms for stage in measured.stages) == pytest.approx(measured.total_ms, abs=1)
    # The loudspeaker's first sound, against what was spoken: nobody's own account of it.
    first = next(n for n, part in enumerate(room.loudspeaker.track) if np.abs(part).max() > 0.01)
    start_s = room.when(RoundBegan)
    assert room.now_s - end_s == pytest.approx(measured.total_ms / 1000, abs=0.021), (
        first,
        start_s,
    )


def test_a_finished_question_ends_sooner_than_one_that_nobody_judges() -> None:
    judged, plain = asked(), asked(config=DialogueConfig(eager=False))
    assert judged.room.of(Measured)[0].total_ms + 300 < plain.room.of(Measured)[0].total_ms


def test_without_a_judge_punctuation_tells() -> None:
    there = asked(judge=False)
    assert there.room.of(Measured)[0].total_ms == pytest.approx(FIRST_SOUND_MS, abs=10)


def test_a_judge_that_fails_leaves_it_to_punctuation() -> None:
    def broken(samples: np.ndarray) -> float:
        raise RuntimeError("no session")

    there = company(judge=False)
    there.room.dialogue._heard.judge = broken
    there.room.quiet(0.5).hear(there.say(QUESTION)).until_audible()
    assert there.room.turns == [QUESTION]


def test_a_slow_transcriber_is_waited_for() -> None:
    there = asked(costs=Costs(transcribe=1500))
    assert there.room.turns == [QUESTION]
    there.room.until_idle()
    assert there.room.over == [("complete", REPLY)]


def test_yes_in_half_a_second_is_answered() -> None:
    there = company()
    there.room.quiet(0.5).hear(there.say("Yes.", 0.35)).until_idle()
    assert there.room.turns == ["Yes."]
    assert there.room.over[0][0] == "complete"


def test_silence_and_a_click_are_no_turn() -> None:
    there = company()
    there.room.quiet(2).hear(there.say("...", 0.1)).quiet(3)
    assert there.room.events == []


def test_noise_without_words_is_no_turn() -> None:
    there = company()
    there.room.quiet(0.5).hear(there.say("...", 0.8)).quiet(3)
    assert there.room.turns == [] and there.talk.asked == []
    assert not there.room.of(RoundBegan)
