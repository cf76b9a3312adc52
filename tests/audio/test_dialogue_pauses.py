"""Pauses within what somebody says, and monologues, in a room without models."""

from __future__ import annotations

import numpy as np

from audio.dialogue import DialogueConfig
from audio.dialogue_events import Heard, Measured, Play, RoundBegan, TakenBack
from audio.endpointing import EndpointingConfig
from audio.frames import STT_RATE_HZ
from tests.audio.people import REPLY, company
from tests.audio.room import Costs


def test_id_like_to_900_ms_know_is_one_turn() -> None:
    there = company()
    first, second = there.say("I'd like to"), there.say("know the weather.")
    there.room.quiet(0.5).hear(first).quiet(0.9).hear(second).until_idle()
    assert there.room.turns == ["I'd like to know the weather."]
    assert there.talk.said()[0] == "I'd like to know the weather."
    assert len(there.room.over) == 1


def test_a_trailing_um_waits_at_most_a_second() -> None:
    there = company()
    question = "What is the weather in London, um"
    there.room.quiet(0.5).hear(there.say(question)).until_audible()
    (measured,) = there.room.of(Measured)
    held = {stage.name: stage.ms for stage in measured.stages}["held"]
    assert 400 < held < 1000
    assert 900 < measured.total_ms < 1100


def test_speech_resumed_during_an_eager_reply_gets_one_reply() -> None:
    there = company()
    first, second = there.say("Tell me a story about"), there.say("the sea.")
    there.room.quiet(0.5).hear(first).quiet(0.6).hear(second).until_idle()
    assert there.room.turns == ["Tell me a story about the sea."]
    assert there.talk.asked == ["Tell me a story about", "Tell me a story about the sea."]
    assert len(there.room.of(RoundBegan)) == 1 and len(there.room.of(TakenBack)) >= 1
    assert there.talk.said() == ["Tell me a story about the sea.", REPLY]


def test_no_sound_of_a_reply_that_was_taken_back() -> None:
    there = company()
    first, second = there.say("Because,"), there.say("of the rain.")
    there.room.quiet(0.5).hear(first).quiet(0.8).hear(second)
    assert there.room.of(Play) == []
    there.room.until_idle()
    assert len({event.generation for event in there.room.of(Play)}) == 1


def test_speech_resumed_after_the_turn_ended_but_before_a_sound_is_one_turn() -> None:
    there = company(costs=Costs(synthesis=1500))
    first, second = there.say("What is the capital?"), there.say("Of France, I mean.")
    there.room.quiet(0.5).hear(first).quiet(0.5).hear(second).until_idle()
    assert there.room.turns == ["What is the capital?", "What is the capital? Of France, I mean."]
    assert [finish for finish, _ in there.room.over] == ["superseded", "complete"]
    assert there.talk.said() == ["What is the capital? Of France, I mean.", REPLY]
    assert {event.generation for event in there.room.of(Play)} == {
        event.generation for event in there.room.of(RoundBegan)[1:]
    }


def test_partial_words_come_before_the_turn_is_confirmed() -> None:
    there = company()
    there.room.quiet(0.5).hear(there.say("My name is", 0.6)).quiet(0.5)
    assert [(event.text, event.final) for event in there.room.of(Heard)] == [("My name is", False)]


def test_a_40_s_monologue_is_one_turn_in_bounded_memory() -> None:
    there = company()
    texts = [f"This is sentence number {n}" for n in range(20)] + ["And that is all."]
    room = there.room.quiet(0.5)
    for text in texts:
        room.hear(there.say(text, 1.8)).quiet(0.2)
    room.until_idle()
    assert room.turns == [" ".join(texts)]
    assert len(room.records[0].question) < 45 * STT_RATE_HZ


def test_a_monologue_past_the_longest_utterance_goes_on_as_one_turn() -> None:
    config = DialogueConfig(endpointing=EndpointingConfig(max_utterance_s=4.0))
    there = company(config=config)
    first, second = there.say("A very long story", 5.0), there.say("that ends here.", 1.0)
    there.room.quiet(0.5).hear(np.concatenate([first, second])).until_idle()
    assert there.room.turns[-1].endswith("that ends here.")
    assert [finish for finish, _ in there.room.over][-1] == "complete"
    assert len(there.talk.messages) == 2
