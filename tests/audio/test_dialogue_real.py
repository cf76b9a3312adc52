"""A room on a virtual clock with the real models: detector, judge, transcriber, engine, voice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from assets.resolver import resolve
from audio.dialogue_events import Ignored, Measured, Pause, Resume, RoundBegan
from audio.pipeline import VoicePipeline
from audio.rounds import Parts, Request
from audio.smart_turn import SmartTurn
from audio.stt import Transcriber
from audio.tts import Synthesizer
from audio.vad import StreamingVad
from benchmarks import sounds
from engine.base import DecodeEngine
from engine.conversation import Conversation
from engine.sampling import SamplingParams
from engine.setup import open_engine, open_model
from tests.audio.conftest import Say
from tests.audio.room import Costs, Room
from tests.audio.words import errors

pytestmark = pytest.mark.real

PARAMS = SamplingParams(max_tokens=48, repetition_penalty=1.1)
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> DecodeEngine:
    return open_engine("eager", open_model("smollm2-135m-instruct", smollm2_path), speaking=True)


@pytest.fixture(scope="module")
def judge() -> SmartTurn:
    return SmartTurn(resolve("turn"))


@pytest.fixture
def make_room(
    transcriber: Transcriber,
    steady_synthesizer: Synthesizer,
    engine: DecodeEngine,
    judge: SmartTurn,
) -> Callable[..., tuple[Room, Conversation]]:
    pipeline = VoicePipeline(transcriber, steady_synthesizer)

    def made(judged: bool = True) -> tuple[Room, Conversation]:
        conversation = Conversation(engine.model, enable_thinking=False)

        @contextmanager
        def open_turn(request: Request) -> Iterator[Parts]:
            yield Parts(
                conversation,
                lambda text: pipeline.text_turn(
                    text, conversation, engine, PARAMS, request.speak, joins=False
                ),
                engine.name,
            )

        listens = judge.probability if judged else None
        room = Room(open_turn, pipeline.transcribe, StreamingVad(), listens, costs=Costs())
        return room, conversation

    return made


MakeRoom = Callable[..., tuple[Room, Conversation]]


def near(sound: np.ndarray) -> np.ndarray:
    """Without the silence that the synthesiser leaves around speech."""
    first, end = sounds.acoustic_bounds(sound)
    return sound[first : end + 800]


@pytest.mark.parametrize("make", [sounds.silence, sounds.fan, sounds.hum, sounds.music])
def test_60_s_of_silence_fan_noise_60_hz_hum_and_music_are_no_turn(
    make_room: MakeRoom, make: Callable[[float], np.ndarray]
) -> None:
    room, _ = make_room()
    room.hear(make(60.0))
    assert room.of(RoundBegan) == [], room.told()


def test_a_minute_of_dialogue(make_room: MakeRoom, say: Say) -> None:
    room, conversation = make_room()
    room.quiet(0.5)
    questions = (QUESTION, "And what is the capital of Italy?", "Thank you.")
    for question in questions:
        room.hear(near(say(question))).until_idle()
    assert [errors(asked, heard) for asked, heard in zip(questions, room.turns, strict=True)] == [
        0,
        0,
        0,
    ]
    assert "Paris" in room.over[0][1] and "Italy" in room.over[1][1]
    assert [finish for finish, _ in room.over] == ["complete"] * 3
    assert len(conversation.messages) == 6
    for measured in room.of(Measured):
        assert measured.total_ms < 700
        total = sum(stage.ms for stage in measured.stages)
        assert total == pytest.approx(measured.total_ms, abs=5)


def test_a_question_with_900_ms_of_thought_is_one_turn(make_room: MakeRoom, say: Say) -> None:
    room, _ = make_room()
    first, second = say("I'd like to"), say("know the capital of France.")
    room.quiet(0.5).hear(near(first)).quiet(0.85).hear(near(second)).until_idle()
    assert len(room.turns) == 1
    assert errors("I'd like to know the capital of France.", room.turns[0]) <= 1


def test_yes_in_half_a_second_is_answered(make_room: MakeRoom, say: Say) -> None:
    room, _ = make_room()
    room.quiet(0.5).hear(near(say("Yes."))).until_idle()
    assert [text.strip(".!") for text in room.turns] == ["Yes"]


def test_stop_is_silent_within_300_ms(make_room: MakeRoom, say: Say) -> None:
    room, _ = make_room()
    room.quiet(0.5).hear(near(say("Tell me a long story about the sea."))).until_audible(1.0)
    start_s = room.now_s
    room.hear(near(say("Stop."))).quiet(1.0)
    assert (room.when(Pause) - start_s) * 1000 <= 300
    assert room.over[0][0] == "stopped" and not room.dialogue.active
    assert [event.why for event in room.of(Ignored)] == ["stop"]


def test_an_interruption_is_answered_and_only_what_was_heard_is_remembered(
    make_room: MakeRoom, say: Say
) -> None:
    room, conversation = make_room()
    room.quiet(0.5).hear(near(say("Tell me a long story about the sea."))).until_audible(1.5)
    room.hear(near(say("What is the capital of France?"))).until_idle()
    assert errors("What is the capital of France?", room.turns[1]) <= 1
    assert room.over[0][0] == "interrupted"
    assert conversation.messages[1]["content"] == room.over[0][1] != ""
    assert room.over[1][0] == "complete"


@pytest.mark.parametrize("sound", [sounds.cough, sounds.click])
def test_a_cough_and_a_click_do_not_end_a_reply(
    make_room: MakeRoom, say: Say, sound: Callable[[], np.ndarray]
) -> None:
    room, _ = make_room()
    room.quiet(0.5).hear(near(say(QUESTION))).until_audible(0.5)
    room.hear(sound()).until_idle()
    assert room.turns == [QUESTION]
    assert [finish for finish, _ in room.over] == ["complete"]


def test_a_cough_before_the_first_audio_lets_the_reply_survive(
    make_room: MakeRoom, say: Say
) -> None:
    room, _ = make_room()
    room.quiet(0.5).hear(near(say(QUESTION))).quiet(0.15).hear(sounds.cough()).until_idle()
    assert room.over[-1][0] == "complete" and "Paris" in room.over[-1][1]
    assert len([finish for finish, _ in room.over if finish == "complete"]) == 1


def test_mm_hm_during_a_reply_lets_it_go_on(make_room: MakeRoom, say: Say) -> None:
    room, _ = make_room()
    room.quiet(0.5).hear(near(say("Tell me a short story about the sea."))).until_audible(0.8)
    room.hear(near(say("Yeah."))).until_idle()
    assert len(room.turns) == 1, room.turns
    assert room.over[0][0] == "complete"
    assert len(room.of(Pause)) == len(room.of(Resume))


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("question", [QUESTION, "How do birds fly?"])
def test_own_echo_is_no_turn(make_room: MakeRoom, say: Say, question: str, share: float) -> None:
    """No echo cancelling at all: the microphone hears the loudspeaker 10 and 20 dB down."""
    room, _ = make_room()
    room.echo = share
    room.quiet(0.5).hear(near(say(question))).until_idle().quiet(2.0)
    assert room.turns == [question], room.told()
    assert room.over[0][0] == "complete"


def test_a_40_s_monologue_is_right_past_the_recognisers_window(
    make_room: MakeRoom, say: Say
) -> None:
    sentences = (
        "My grandfather was a sailor and he told me many stories,",
        "about the islands in the south where the water is warm,",
        "and about the storms in the north where the wind never stops,",
        "and about a small dog that lived on his ship for seven years,",
        "which was not afraid of anything but the sound of thunder,",
        "and he said that on clear nights he could see the lights of towns,",
        "that were so far away that nobody believed him at first,",
        "until they looked through the old telescope that he had bought,",
        "from a man in a market who had one blue eye and one brown eye,",
        "and when he was old he sat in his garden with the telescope on his knees,",
        "and he looked at the ships that came from the other side of the world,",
        "and he wrote their names in a little book with a red cover,",
        "and now I would like to know how far a person can see at sea?",
    )
    room, _ = make_room()
    spoken = np.concatenate([near(say(sentence))[:-800] for sentence in sentences])
    assert len(spoken) / 16000 > 30
    room.quiet(0.5).hear(spoken).until_idle()
    text = " ".join(sentences)
    assert len(room.turns) >= 1
    heard = room.turns[-1]
    assert errors(text, heard) / len(text.split()) < 0.15, heard


def test_punctuation_alone_ends_turns_where_there_is_no_judge(
    make_room: MakeRoom, say: Say
) -> None:
    room, _ = make_room(judged=False)
    room.quiet(0.5).hear(near(say(QUESTION))).until_idle()
    assert room.turns == [QUESTION]
    assert room.of(Measured)[0].total_ms < 700


def test_another_voice_answers_to_the_first(
    make_room: MakeRoom, say: Say, say_robotic: Say
) -> None:
    """Two people in turn, in one conversation."""
    room, conversation = make_room()
    room.quiet(0.5).hear(near(say(QUESTION))).until_idle()
    room.hear(near(say_robotic("How many legs does a spider have?"))).until_idle()
    assert len(room.turns) == 2 and len(conversation.messages) == 4
    assert errors("How many legs does a spider have?", room.turns[1]) <= 2
