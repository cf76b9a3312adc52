"""What a visitor tries on the engines beside the conversation: again, a race, a blind test."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.conversation import check_text
from engine.errors import UnpausedError
from ui.blind import BlindTest, Choice, Trial
from ui.ledger import ComparisonRecord
from ui.race import running_order
from ui.runs import Runs, Subject
from ui.trace import Trace
from ui.words import waiting

if TYPE_CHECKING:
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.reply import ReplyStream
    from ui.session import Session
    from ui.turn_worker import TurnWorker

ExperimentKind = Literal["again", "race", "blind"]
WAIT_S = 0.25  # between two looks at the progress


@dataclass(frozen=True)
class Experiment:
    """Runs under way on a session's worker; `first` is the trace that `again` is held against."""

    kind: ExperimentKind
    runs: Runs
    worker: TurnWorker
    first: Trace | None = None

    def ended(self) -> bool:
        """Whether it has ended, after waiting a little for it."""
        return self.worker.wait_ended(WAIT_S)

    def progress(self) -> str:
        """What is being done, in words; names stay out of a blind test."""
        step, total = self.runs.step, len(self.runs.order)
        if step == 0:
            place = self.worker.place
            return "Getting the engines ready…" if place is None else waiting(*place)
        name = self.runs.contenders[self.runs.order[step - 1]][0]
        if self.kind == "blind":
            return f"Run {step} of {total}…"
        return f"{name} is running ({step} of {total})…" if total > 1 else f"{name} is running…"

    def pair(self) -> tuple[Trace, Trace]:
        """The two traces, once it has ended. Raises `UnpausedError` with what went wrong."""
        if self.worker.error:
            raise UnpausedError(self.worker.error)
        traces = [self.first, *self.runs.traces] if self.first else self.runs.traces
        done = [trace for trace in traces if trace is not None and trace.tokens]
        if len(done) != 2:
            raise UnpausedError("It was stopped before both had run.")
        return done[0], done[1]


class Lab:
    """One session's experiments. Each runs as a turn: it waits its place and can be stopped."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.blind = BlindTest()

    def again(self, engine: str) -> Experiment:
        """The latest answered turn on `engine`. Raises `UnpausedError`."""
        if self._session.view().running:
            raise UnpausedError("The answer is still coming; wait for its end.")
        first, reply = self._session.ledger.trace, self._session.last_reply
        if first is None or reply is None:
            raise UnpausedError("Ask something first: again repeats the last answer.")
        return self._begin("again", [engine], [0], lambda conversation, _: reply, first)

    def race(self, text: str, engines: Sequence[str], kind: ExperimentKind = "race") -> Experiment:
        """`text` on two engines, in an order drawn by lot. Raises `UnpausedError`."""
        text = text.strip()
        check_text(text)
        if len(set(engines)) != 2:
            raise UnpausedError("Choose two different engines.")
        params = self._session.params

        def subject(conversation: Conversation, engine: DecodeEngine) -> ReplyStream:
            return conversation.reply(engine, text, params, joins=False)

        order = running_order(2, secrets.randbelow(2))
        return self._begin(kind, engines, order, subject)

    def begin_trial(self, text: str, engines: Sequence[str]) -> Experiment:
        """Two hidden runs, shown as A and B by lot. Raises `UnpausedError`."""
        self.blind.open_runs = None
        return self.race(text, _shuffled(engines), "blind")

    def show_trial(self, experiment: Experiment) -> None:
        """Its runs have ended: now the visitor may choose."""
        self.blind.begin(experiment.pair())

    def choose(self, choice: Choice) -> Trial:
        """The visitor's answer to the open trial."""
        return self.blind.choose(choice)

    def keep(self, experiment: Experiment) -> tuple[Trace, Trace]:
        """The traces of an experiment that has ended, now also part of the session's export."""
        pair = experiment.pair()
        order = (0, 1) if experiment.first else tuple(experiment.runs.order)
        with self._session.changed:
            self._session.ledger.comparisons.append(ComparisonRecord(experiment.kind, pair, order))
        return pair

    def _begin(
        self,
        kind: ExperimentKind,
        engines: Sequence[str],
        order: Sequence[int],
        subject: Subject,
        first: Trace | None = None,
    ) -> Experiment:
        contenders = [self._session.contender(name) for name in engines]
        runs = Runs(subject, contenders, order, secret=kind == "blind")
        return Experiment(kind, runs, self._session.start_aside(runs), first)


def _shuffled(engines: Sequence[str]) -> list[str]:
    drawn = list(engines)
    secrets.SystemRandom().shuffle(drawn)
    return drawn
