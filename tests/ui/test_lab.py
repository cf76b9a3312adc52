"""Again, race and blind test as a session runs them."""

from __future__ import annotations

import json

import pytest

from engine.errors import UnpausedError
from tests.ui.client import Client, contents, run
from tests.ui.conftest import until
from tests.ui.fakes import REPLY, FakeEntry, FakePipeline, services
from ui.lab import Experiment
from ui.services import Runtime
from ui.session import Session
from ui.visitors import Visitors

ENGINES = [
    FakeEntry("eager", "Kernel per op"),
    FakeEntry("cpu", "Native"),
    FakeEntry("graph", "CUDA graph", reason="no GPU"),
]


@pytest.fixture
def session(pipeline: FakePipeline) -> Session:
    return Visitors(Runtime(services(pipeline, ENGINES))).open()


def ended(experiment: Experiment) -> Experiment:
    for _ in range(100):
        if experiment.ended():
            return experiment
    raise AssertionError("it did not end")


def ask(session: Session, text: str = "Why?") -> None:
    session.start_text(text)
    run(session)


def test_again_repeats_the_last_answer_elsewhere_and_stays_outside(session: Session) -> None:
    ask(session)
    before = contents(session)
    experiment = ended(session.lab.again("cpu"))
    first, second = session.lab.keep(experiment)
    assert (first.engine, second.engine) == ("eager", "cpu")
    assert first.answer == second.answer == REPLY and first.question == second.question == "Why?"
    assert contents(session) == before and len(session.ledger.turns) == 1
    assert session.ledger.comparisons[0].as_dict()["identical_tokens"] is True


def test_again_needs_an_answer_that_has_ended(session: Session, pipeline: FakePipeline) -> None:
    with pytest.raises(UnpausedError, match="Ask something first"):
        session.lab.again("cpu")
    pipeline.hold_after = 3
    session.start_text("Why?")
    until(session, lambda: len(contents(session)) == 2)
    with pytest.raises(UnpausedError, match="still coming"):
        session.lab.again("cpu")
    pipeline.pace.set()
    run(session)
    with pytest.raises(UnpausedError, match="no GPU"):
        session.lab.again("graph")


def test_a_race_runs_both_once_in_an_order_by_lot(session: Session) -> None:
    orders = set()
    for _ in range(12):
        experiment = ended(session.lab.race("Why?", ["eager", "cpu"]))
        pair = session.lab.keep(experiment)
        assert [trace.engine for trace in pair] == ["eager", "cpu"]
        orders.add(tuple(experiment.runs.order))
    assert orders == {(0, 1), (1, 0)}
    assert contents(session) == [] and session.view().failed_text == ""


@pytest.mark.parametrize(
    ("text", "engines", "fault"),
    [
        (" ", ["eager", "cpu"], "empty"),
        ("Why?", ["eager", "eager"], "two different"),
        ("Why?", ["eager"], "two different"),
        ("Why?", ["eager", "graph"], "no GPU"),
        ("Why?", ["eager", "warp"], "unknown engine"),
    ],
)
def test_a_race_that_cannot_be_is_one_line(
    session: Session, text: str, engines: list[str], fault: str
) -> None:
    with pytest.raises(UnpausedError, match=fault):
        session.lab.race(text, engines)
    assert not session.view().running


def test_a_stopped_race_has_no_result(session: Session) -> None:
    experiment = session.lab.race("Why?", ["eager", "cpu"])
    experiment.runs.stop()
    ended(experiment)
    with pytest.raises(UnpausedError, match="stopped"):
        experiment.pair()
    ask(session)  # and the session goes on
    assert contents(session)[-1][1] == REPLY


def test_a_race_that_waits_shows_its_place(session: Session) -> None:
    gate = session._runtime.gate
    first, second = gate.enter(), gate.enter()
    experiment = session.lab.race("Why?", ["eager", "cpu"])
    assert experiment.progress() == "Waiting: 2 turns are before yours"
    first.leave()
    assert experiment.progress() == "Waiting: 1 turn is before yours, about 1 s"
    second.leave()
    ended(experiment)
    assert experiment.pair()


def test_an_engine_that_fails_fails_the_race_in_words(pipeline: FakePipeline) -> None:
    made = services(pipeline, ENGINES)

    def broken(name: str) -> object:
        raise UnpausedError(f"no room for {name}")

    session = Visitors(Runtime(type(made)(**{**vars(made), "make_engine": broken}))).open()
    experiment = ended(session.lab.race("Why?", ["eager", "cpu"]))
    with pytest.raises(UnpausedError, match="No room for eager"):
        experiment.pair()


def test_a_blind_trial_tells_nothing_before_the_choice(session: Session) -> None:
    client = Client(session, sound=False)
    shown = set()
    for number in range(12):
        experiment = session.lab.begin_trial("Why?", ["eager", "cpu"])
        while not experiment.ended():
            assert "Native" not in experiment.progress() and "Kernel" not in experiment.progress()
            assert session.metrics() is None
        assert session.metrics() is None
        with pytest.raises(UnpausedError, match="no trial"):
            session.lab.choose("A")
        session.lab.show_trial(experiment)
        trial = session.lab.choose("A")
        shown.add(trial.runs[0].engine)
        assert trial.right == (trial.runs[0].engine == "cpu")
        assert len(session.lab.blind.trials) == number + 1
    assert shown == {"eager", "cpu"}  # A is either
    assert not session.ledger.comparisons
    assert not any("eager" in json.dumps(event) for event in client.events)


def test_an_aside_ends_the_turn_before_it_and_a_turn_ends_an_aside(
    session: Session, pipeline: FakePipeline
) -> None:
    pipeline.hold_after = 3
    session.start_text("Why?")
    until(session, lambda: len(contents(session)) == 2)
    race = session.lab.race("Why?", ["eager", "cpu"])
    pipeline.pace.set()
    ended(race)
    assert contents(session)[-1][1].endswith("*Stopped.*")


def test_hidden_tokens_are_decoded_and_told(session: Session) -> None:
    with pytest.raises(UnpausedError, match="0 to 500"):
        session.set_hidden_tokens(501)
    session.set_hidden_tokens(20)
    ask(session)
    trace = session.ledger.trace
    assert trace is not None and trace.metrics["hidden_tokens"] == 20
    assert [token.hidden for token in trace.tokens[:21]] == [True] * 20 + [False]
    assert "20 hidden tokens" in session.silences["Kernel per op"]
    assert "after 20 hidden tokens" in session.view().messages[-1]["label"]
    experiment = ended(session.lab.race("Why?", ["eager", "cpu"]))
    assert experiment.pair()[0].metrics["hidden_tokens"] == 0  # a race is of what is said
