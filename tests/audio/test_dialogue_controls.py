"""Typing, buttons, going away, and an hour of talk, in a room without models."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from audio.barge_in import BargeInConfig
from audio.dialogue import DialogueConfig
from audio.dialogue_events import Flush, Pause, RoundBegan, SpeechBegan, SpeechOver, Trouble
from tests.audio.people import QUESTION, REPLY, Talk, asked, company
from tests.audio.room import Costs


def test_typed_text_is_answered_and_can_be_interrupted_by_voice() -> None:
    there = company()
    there.room.dialogue.say("Why?")
    there.room.until_audible(1.0).hear(there.say("And what about the sea?")).until_idle()
    assert [finish for finish, _ in there.room.over] == ["interrupted", "complete"]
    # What was typed was read: all of its answer stays.
    assert there.talk.said() == ["Why?", REPLY, "And what about the sea?", REPLY]


def test_typing_stops_a_reply() -> None:
    there = asked()
    there.room.quiet(0.5).dialogue.say("Why?")
    there.room.until_idle()
    assert [finish for finish, _ in there.room.over] == ["stopped", "complete"]


def test_push_to_talk() -> None:
    there = company()
    dialogue = there.room.dialogue
    dialogue.listen(False)
    dialogue.press()
    there.room.quiet(0.3).hear(there.say("My name is")).quiet(0.2)
    dialogue.release()
    there.room.until_idle()
    assert there.room.turns == ["My name is"]
    assert there.room.over == [("complete", REPLY)]
    stages = {stage.name: stage.ms for stage in there.room.records[0].stages}
    assert stages["endpointing"] == pytest.approx(200, abs=40)


def test_push_to_talk_without_a_word_says_so() -> None:
    there = company()
    there.room.dialogue.press()
    there.room.quiet(1.0).dialogue.release()
    assert len(there.room.of(Trouble)) == 1 and not there.room.of(RoundBegan)


def test_pressing_stops_the_reply_at_once() -> None:
    there = asked()
    there.room.quiet(0.5).dialogue.press()
    assert there.room.of(Flush) and not there.room.dialogue.active


def test_pressing_again_while_it_transcribes_leaves_one_turn() -> None:
    there = company(costs=Costs(transcribe=800))
    dialogue = there.room.dialogue
    dialogue.press()
    there.room.hear(there.say("One.")).quiet(0.1).dialogue.release()
    dialogue.press()
    there.room.hear(there.say("Two.")).quiet(0.1).dialogue.release()
    there.room.until_idle()
    assert there.room.turns == ["Two."]
    assert there.talk.said() == ["Two.", REPLY]


def test_listening_switched_off_in_a_sentence_forgets_it() -> None:
    there = company()
    there.room.quiet(0.5).hear(there.say(QUESTION, 2.0)).dialogue.listen(False)
    there.room.quiet(3.0)
    assert there.room.turns == []
    assert there.room.of(SpeechBegan)
    assert there.room.of(SpeechOver)


def test_close_mid_reply_stops_it() -> None:
    there = asked()
    there.room.dialogue.close()
    there.room.quiet(1.0)
    assert there.room.over[0][0] == "stopped" and there.opened[0].stopped


def test_a_one_hour_soak_keeps_memory_flat() -> None:
    there = company(talk=Talk(reply_text="It is. " * 5))
    room, question, mm_hm = there.room, there.say(QUESTION), there.say("Mm-hm.", 0.4)
    turns, held = 0, []
    tracemalloc.start()
    while room.now_s < 3600:
        room.hear(question).until_audible(0.4).hear(mm_hm).until_idle().quiet(2.0)
        for kept in (room.events, room.loudspeaker.track, there.talk.messages, there.talk.asked):
            kept.clear()
        there.opened.clear()
        turns += 1
        if turns % 40 == 0:
            gc.collect()  # rounds refer to each other: without it this measures when that is done
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert turns > 400
    assert max(held) - held[0] < 200_000
    assert len(room.dialogue.records) == 16
    assert room.dialogue._heard.undecided == []


def test_a_cough_config_can_be_stricter() -> None:
    config = DialogueConfig(barge_in=BargeInConfig(pause_ms=400))
    there = asked(config=config)
    there.room.quiet(1.0).hear(there.say("...", 0.3)).until_idle()
    assert there.room.of(Pause) == []
