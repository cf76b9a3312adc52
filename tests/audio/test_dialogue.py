"""Turn-taking on a virtual clock, with stand-ins for the models: each test is named after what
somebody does in the room."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from audio.barge_in import BargeInConfig
from audio.dialogue import DialogueConfig
from audio.dialogue_events import (
    Duck,
    Flush,
    Heard,
    Ignored,
    Measured,
    Pause,
    Play,
    Resume,
    RoundBegan,
    RoundOver,
    SpeechBegan,
    SpeechOver,
    TakenBack,
    Trouble,
)
from audio.endpointing import EndpointingConfig
from audio.frames import STT_RATE_HZ
from engine.errors import UnpausedError
from tests.audio.people import REPLY, Company, Talk, company
from tests.audio.room import Costs

QUESTION = "Why is the sky blue?"
FIRST_SOUND_MS = 104 + 152 + 40 + 48 + 72  # silence, transcription, prefill, clause, synthesis


def asked(question: str = QUESTION, **parts: object) -> Company:
    """Somebody has asked, and the reply has just become audible."""
    there = company(**parts)  # type: ignore[arg-type]
    there.room.quiet(0.5).hear(there.say(question)).until_audible()
    return there


def silent_after(there: Company, start_s: float) -> float:
    """Milliseconds from `start_s` until nothing was audible."""
    room = there.room
    at = [when for when, event in room.events if isinstance(event, Pause | Flush) and
          when >= start_s]  # fmt: skip
    return (at[0] - start_s) * 1000


# A question


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


# Pauses


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


# Interruptions


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
    there.room.quiet(1.0).hear(there.say("...", 0.1)).until_idle()
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


# Replies that are odd


@pytest.mark.parametrize("reply", ["", "🙂 🎉", "..."])
def test_a_reply_without_words_closes_the_turn(reply: str) -> None:
    there = company(talk=Talk(reply_text=reply))
    there.room.quiet(0.5).hear(there.say(QUESTION)).quiet(2.0)
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


def test_a_player_that_is_lost_leaves_the_words() -> None:
    there = asked()
    there.room.quiet(0.5)
    there.room.dialogue.mute()
    there.room.quiet(1.0)
    assert there.room.over[0][0] == "complete"
    assert there.talk.said() == [QUESTION, REPLY]
    assert not there.room.dialogue.active


def test_blocks_with_nan_are_silence() -> None:
    there = company()
    spoken = there.say(QUESTION)
    broken = np.full(STT_RATE_HZ, np.nan, np.float32)
    there.room.quiet(0.5).hear(broken).hear(spoken).until_idle()
    assert there.room.turns == [QUESTION]


# Typing, buttons, and going away


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
    held = []
    tracemalloc.start()
    while room.now_s < 3600:
        room.hear(question).until_audible(0.4).hear(mm_hm).until_idle().quiet(2.0)
        for kept in (room.events, room.loudspeaker.track, there.talk.messages, there.talk.asked):
            kept.clear()
        there.opened.clear()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(held) > 400
    assert max(held[-20:]) - min(held[30:50]) < 500_000
    assert len(room.dialogue.records) == 16
    assert room.dialogue._heard.undecided == []


def test_a_cough_config_can_be_stricter() -> None:
    config = DialogueConfig(barge_in=BargeInConfig(pause_ms=400))
    there = asked(config=config)
    there.room.quiet(1.0).hear(there.say("...", 0.3)).until_idle()
    assert there.room.of(Pause) == []
