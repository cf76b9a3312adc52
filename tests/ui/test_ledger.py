"""What a session remembers of its turns, and gives out as JSON and WAV."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import soundfile

from audio import record
from engine.errors import UnpausedError
from tests.ui.client import SPEECH, Client, run
from tests.ui.conftest import until
from tests.ui.fakes import RATE_HZ, REPLY, FakeEntry, FakePipeline, services, tone
from ui import ledger as ledgers
from ui.lab_panels import exports
from ui.services import Runtime
from ui.session import Session
from ui.visitors import Visitors

ENGINES = [FakeEntry("eager", "Kernel per op"), FakeEntry("cpu", "Native")]
SAID = [
    tone(0.25 * words) for words in (4, 10)
]  # the reply's sentences, as the fake voice has them


@pytest.fixture
def session(pipeline: FakePipeline) -> Session:
    return Visitors(Runtime(services(pipeline, ENGINES))).open()


def ask(session: Session, text: str = "Why?") -> None:
    session.start_text(text)
    run(session)


def stereo(session: Session, turn: int) -> np.ndarray:
    """int16 [n, 2] of a turn's WAV."""
    sound, rate_hz = soundfile.read(io.BytesIO(session.ledger.turn_wav(turn)), dtype="int16")
    assert rate_hz == RATE_HZ and sound.shape[1] == 2
    return np.asarray(sound)


def heard_turn(session: Session, client: Client, samples: int | None = None) -> int:
    """A spoken turn of whose reply so many `samples` were played, or all."""
    turn = session.start_voice(SPEECH, 200.0)
    run(session)

    def played() -> bool:
        client.receive()
        sent = len(client.pcm.get(turn, b"")) // 2
        session.played(turn, sent if samples is None else min(sent, samples), False, 20.0, 100.0)
        return not session.active if samples is None else sent >= samples

    until(session, played)
    return turn


def test_a_session_is_exported_as_it_was(session: Session, pipeline: FakePipeline) -> None:
    ask(session)
    pipeline.fails = "The voice is missing."
    ask(session, "And then?")
    again = session.lab.again("cpu")
    until(session, again.ended)
    session.lab.keep(again)
    data = json.loads(session.ledger.session_json())
    assert [turn["question"] for turn in data["turns"]] == ["Why?", "And then?"]
    assert [turn["finish"] for turn in data["turns"]] == ["complete", "failed"]
    assert data["turns"][1]["error"] == "The voice is missing." and not data["turns"][1]["decode"]
    decode = data["turns"][0]["decode"]
    assert decode["engine_label"] == "Kernel per op" and decode["seed"] == 0
    assert "".join(token["text"] for token in decode["tokens"]) == REPLY
    assert data["comparisons"][0]["kind"] == "again"
    with pytest.raises(UnpausedError, match="no turn 99"):
        session.ledger.turn_json(99)


def test_a_turn_in_stereo_has_both_voices_as_far_apart_as_they_were(session: Session) -> None:
    client = Client(session)
    turn = heard_turn(session, client)
    told = json.loads(session.ledger.turn_json(turn))
    gap_s = sum(stage["ms"] for stage in told["stages"]) / 1000
    assert gap_s >= 0.2  # what was waited for before it was asked
    sound = stereo(session, turn)
    left, right = np.flatnonzero(sound[:, 0]), np.flatnonzero(sound[:, 1])
    assert left[-1] / RATE_HZ == pytest.approx(len(SPEECH) / 16000, abs=0.01)
    assert (right[0] - left[-1]) / RATE_HZ == pytest.approx(gap_s, abs=0.01)
    assert len(sound) - right[0] == pytest.approx(sum(map(len, SAID)), abs=2)
    assert told["wav"]["speech_ends_s"] == 1.0 and told["wav"]["right"] == "answer"
    assert told["wav"]["answer_begins_s"] == pytest.approx(1 + gap_s, abs=0.01)
    assert client.of("speech")


def test_of_a_reply_that_was_stopped_only_what_was_heard_is_in_it(session: Session) -> None:
    turn = heard_turn(session, Client(session), RATE_HZ // 2)
    session.stop(turn, RATE_HZ // 2)
    until(session, lambda: not session.active)
    right = np.flatnonzero(stereo(session, turn)[:, 1])
    assert right[-1] - right[0] == pytest.approx(RATE_HZ // 2, abs=3)


def test_while_it_is_still_played_the_answer_is_there_already(session: Session) -> None:
    Client(session)
    turn = session.start_voice(SPEECH, 200.0)
    run(session)
    assert len(np.flatnonzero(stereo(session, turn)[:, 1])) > RATE_HZ
    session.stop()


def test_all_that_was_said_aloud_is_one_wav(session: Session) -> None:
    client = Client(session)
    for _ in range(2):
        heard_turn(session, client)
    sound, rate_hz = soundfile.read(io.BytesIO(session.ledger.wav()))
    assert rate_hz == RATE_HZ and sound.ndim == 1
    assert len(sound) / rate_hz == pytest.approx(2 * 3.5 + ledgers.PAUSE_S, abs=0.01)


def test_without_a_voice_there_is_no_wav(session: Session) -> None:
    ask(session)
    turn = session.ledger.turns[-1].number
    assert json.loads(session.ledger.turn_json(turn))["wav"] is None
    with pytest.raises(UnpausedError, match="is sound on"):
        session.ledger.turn_wav(turn)
    with pytest.raises(UnpausedError, match="is sound on"):
        session.ledger.wav()


def test_speech_is_bounded_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MAX_SPEECH_BYTES", 9000)
    ledger = ledgers.Ledger()
    for number in range(4):
        speech = [np.zeros(1000, np.int16)]
        ledger.add(
            ledgers.TurnRecord(number, "voice", "q", "a", "complete", "", [], None, None, speech)
        )
        question = np.zeros(1000, np.int16)
        ledger.over(number, record.TurnRecord(number, "voice", question=question, answer=speech))
    assert [turn.sound_bytes for turn in ledger.turns] == [0, 0, 4000, 4000]
    assert len(ledger.session_json()) > 100


def test_the_link_says_who_is_on_which_side_to_those_who_do_not_see_it() -> None:
    links = exports("session-1")
    assert 'href="export/session-1/turn.wav" download' in links
    assert 'aria-label="turn, WAV: in stereo, you on the left, the answer on the right"' in links
    assert exports("") == ""
