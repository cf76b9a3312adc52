"""What happens to a reply that is spoken over, in a room without models."""

from __future__ import annotations

import pytest

from audio.dialogue import DialogueConfig
from audio.dialogue_events import Duck, Flush, Ignored, Pause, Play, Resume, RoundBegan
from tests.audio.people import QUESTION, REPLY, Company, asked, company
from tests.audio.room import Costs


def silent_after(there: Company, start_s: float) -> float:
    """Milliseconds from `start_s` until nothing was audible."""
    room = there.room
    at = [when for when, event in room.events if isinstance(event, Pause | Flush) and
          when >= start_s]  # fmt: skip
    return (at[0] - start_s) * 1000


def test_stop_mid_reply_is_silent_within_300_ms_and_stops_the_engine() -> None:
    there = asked()
    room = there.room.quiet(1.0)
    start_s = room.now_s
    room.hear(there.say("Stop.")).quiet(1.0)
    assert silent_after(there, start_s) <= 300
    assert not there.room.dialogue.active
    assert there.opened[0].stopped
    assert there.room.over == [("stopped", there.room.over[0][1])]
    assert [event.why for event in room.of(Ignored)] == ["stop"]
    assert room.turns == [QUESTION]


def test_an_interruption_is_silent_within_300_ms_and_is_answered() -> None:
    there = asked()
    room = there.room.quiet(1.5)
    start_s = room.now_s
    room.hear(there.say("And what about the sea?")).until_idle()
    assert silent_after(there, start_s) <= 300
    assert room.turns == [QUESTION, "And what about the sea?"]
    assert [finish for finish, _ in room.over] == ["interrupted", "complete"]


def test_an_interruption_leaves_what_was_heard_in_the_conversation() -> None:
    there = asked()
    there.room.quiet(1.5).hear(there.say("And what about the sea?")).until_idle()
    heard = there.room.over[0][1]
    assert heard and REPLY.startswith(heard) and REPLY[len(heard)] == " "
    assert there.talk.said() == [QUESTION, heard, "And what about the sea?", REPLY]
    # 1.5 s and the time until it was silent, at 60 ms a letter:
    assert len(heard) * 0.06 == pytest.approx(1.7, abs=0.5)


def test_mm_hm_during_a_reply_lets_it_go_on_from_where_it_was() -> None:
    there = asked()
    there.room.quiet(1.0).hear(there.say("Mm-hm.", 0.4)).until_idle()
    assert there.room.turns == [QUESTION]
    assert there.room.over == [("complete", REPLY)]
    assert [event.why for event in there.room.of(Ignored)] == ["back_channel"]
    assert there.room.of(Resume)
    played = there.room.loudspeaker.played_of
    assert played == {there.room.of(Play)[0].generation: sum(
        len(event.pcm) for event in there.room.of(Play))}  # fmt: skip


def test_mm_hm_twice_pauses_twice() -> None:
    there = asked()
    there.room.quiet(0.5).hear(there.say("Mm-hm.", 0.4)).quiet(1.0)
    there.room.hear(there.say("Yeah.", 0.4)).until_idle()
    assert len(there.room.of(Pause)) == len(there.room.of(Resume)) == 2
    assert there.room.over == [("complete", REPLY)]


def test_a_cough_during_a_reply_costs_a_short_pause() -> None:
    there = asked()
    there.room.quiet(1.0).hear(there.say("...", 0.22)).until_idle()
    assert there.room.over == [("complete", REPLY)]
    pauses, resumes = there.room.when(Pause), there.room.when(Resume)
    assert resumes - pauses < 0.5


def test_a_click_during_a_reply_ducks_at_most() -> None:
    there = asked()
    there.room.quiet(1.0).hear(there.say("...", 0.06)).until_idle()
    assert there.room.over == [("complete", REPLY)]
    assert there.room.of(Pause) == []
    assert [event.on for event in there.room.of(Duck)] in ([], [True, False])


def test_a_cough_before_the_first_audio_lets_the_reply_survive() -> None:
    there = company(costs=Costs(synthesis=900))
    room = there.room.quiet(0.5).hear(there.say(QUESTION)).quiet(0.5)
    room.hear(there.say("...", 0.3)).until_idle()
    assert room.turns == [QUESTION]
    assert room.over == [("complete", REPLY)]


def test_a_long_cough_before_the_first_audio_still_gets_the_question_answered() -> None:
    there = company(costs=Costs(synthesis=2000))
    room = there.room.quiet(0.5).hear(there.say(QUESTION)).quiet(0.5)
    room.hear(there.say("...", 1.2)).until_idle()
    assert room.turns[-1] == QUESTION
    assert room.over[-1] == ("complete", REPLY)
    assert there.talk.said() == [QUESTION, REPLY]


def test_speech_for_long_interrupts_before_it_is_over() -> None:
    there = asked()
    room = there.room.quiet(1.0)
    start_s = room.now_s
    room.hear(there.say("Let me tell you something about the sky first.", 3.0))
    assert room.when(Flush) - start_s < 1.0
    room.until_idle()
    assert [finish for finish, _ in room.over] == ["interrupted", "complete"]


def test_two_barge_ins_in_200_ms_end_with_the_last_one_answered() -> None:
    there = asked()
    room = there.room.quiet(1.0)
    room.hear(there.say("No wait,", 0.35)).quiet(0.2).hear(there.say("the sea.")).until_idle()
    assert room.turns == [QUESTION, "No wait, the sea."]
    assert [finish for finish, _ in room.over] == ["interrupted", "complete"]
    assert len(there.talk.messages) == 4


def test_own_echo_is_no_turn() -> None:
    """What the loudspeaker says comes back from the room, after it and a little quieter."""
    there = asked()
    spoken = there.say("the sky is blue because air scatters light", 0.7)
    there.room.quiet(1.5).hear(spoken).until_idle()
    assert there.room.turns == [QUESTION]
    assert [event.why for event in there.room.of(Ignored)] == ["echo"]
    assert there.room.over == [("complete", REPLY)]


def test_the_last_words_echo_when_the_reply_is_over() -> None:
    there = asked()
    end = there.say("are scattered more than long ones", 0.7)
    there.room.until(lambda: not there.room.dialogue.active).hear(end).quiet(2.0)
    assert there.room.turns == [QUESTION]


def test_half_duplex_hears_nothing_while_it_speaks() -> None:
    there = asked(config=DialogueConfig(half_duplex=True))
    there.room.quiet(0.5).hear(there.say("And what about the sea?")).until_idle()
    assert there.room.turns == [QUESTION]
    there.room.quiet(0.5).hear(there.say("And what about the sea?")).until_idle()
    assert there.room.turns == [QUESTION, "And what about the sea?"]


def test_an_engine_switched_mid_reply_is_used_for_the_next_turn() -> None:
    there = asked()
    assert there.room.records == []
    there.room.until_idle().hear(there.say("And at night?")).until_idle()
    assert [record.engine for record in there.room.records] == ["scripted", "scripted"]
    assert [request.generation for request in there.opened] == [
        event.generation for event in there.room.of(RoundBegan)
    ]
