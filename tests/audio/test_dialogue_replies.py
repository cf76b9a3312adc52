"""Replies that are odd, fail or cannot be played, in a room without models."""

from __future__ import annotations

import numpy as np
import pytest

from audio.dialogue_events import RoundOver
from audio.frames import STT_RATE_HZ
from engine.errors import UnpausedError
from tests.audio.people import QUESTION, REPLY, Company, Talk, asked, company


@pytest.mark.parametrize("reply", ["", "🙂 🎉", "..."], ids=["empty", "emoji_only", "dots"])
def test_an_empty_or_emoji_only_reply_closes_the_turn(reply: str) -> None:
    there = company(talk=Talk(reply_text=reply))
    there.room.quiet(0.5).hear(there.say(QUESTION)).quiet(2.0)
    assert_closed_and_answers_the_next(there)


def test_an_end_token_first_closes_the_turn() -> None:
    there = company(talk=Talk(ends_at_once=True))
    there.room.quiet(0.5).hear(there.say(QUESTION)).quiet(2.0)
    there.talk.ends_at_once = False
    assert_closed_and_answers_the_next(there)


def assert_closed_and_answers_the_next(there: Company) -> None:
    assert [finish for finish, _ in there.room.over] == ["complete"]
    assert not there.room.dialogue.active
    there.talk.reply_text = REPLY
    there.room.hear(there.say("And now?")).until_idle()
    assert there.room.over[-1] == ("complete", REPLY)


def test_a_reply_of_which_nothing_is_left_leaves_no_trace() -> None:
    there = company(talk=Talk(reply_text=""))
    there.room.quiet(0.5).hear(there.say(QUESTION)).quiet(2.0)
    assert there.talk.messages == []
    there.talk.reply_text = REPLY
    there.room.hear(there.say("And now?")).until_audible().dialogue.stop()
    there.room.quiet(0.5)
    assert there.room.over[-1] == ("stopped", "") and there.talk.messages == []


def test_a_reply_that_fails_says_so_and_the_next_is_answered() -> None:
    def broken(text: str) -> object:
        raise UnpausedError("the engine has gone")

    there = company(begin=broken)
    there.room.quiet(0.5).hear(there.say(QUESTION)).quiet(2.0)
    (over,) = there.room.of(RoundOver)
    assert (over.finish, over.message) == ("failed", "the engine has gone")
    assert not there.room.dialogue.active


def test_a_transcription_that_fails_says_so() -> None:
    def broken(samples: np.ndarray) -> str:
        raise UnpausedError("the model has gone")

    there = company()
    there.room.dialogue._heard.transcribe = broken
    there.room.quiet(0.5).hear(there.say(QUESTION)).quiet(2.0)
    assert there.room.over == [("failed", "")]


def test_a_loudspeaker_unplugged_mid_turn_leaves_the_words() -> None:
    there = asked()
    there.room.quiet(0.5)
    there.room.dialogue.mute()
    there.room.quiet(1.0)
    assert there.room.over[0][0] == "complete"
    assert there.talk.said() == [QUESTION, REPLY]
    assert not there.room.dialogue.active


def test_frames_with_nan_are_silence() -> None:
    there = company()
    spoken = there.say(QUESTION)
    broken = np.full(STT_RATE_HZ, np.nan, np.float32)
    there.room.quiet(0.5).hear(broken).hear(spoken).until_idle()
    assert there.room.turns == [QUESTION]
