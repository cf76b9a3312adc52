"""What is written down of a session's turns as they go: for the page, and for the export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ui import reports
from ui.board import Board, View
from ui.channel import Channel
from ui.ledger import Ledger
from ui.services import Runtime
from ui.trace import Trace
from ui.turn_worker import TurnWorker
from ui.verdict import StageDict, silence_after, with_thinking
from ui.words import answer_label, left_out

if TYPE_CHECKING:
    from audio.events import Stage
    from audio.record import TurnRecord
    from engine.metrics import ReplyMetrics
    from engine.reply import ReplyStream

TIME_IS_UP = "*Stopped: others are waiting for the engine.*"


class Minutes(Channel):
    """Told by the workers of turns. Every method is safe from any thread."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.board = Board(self.changed)
        self.ledger = Ledger()
        self.silences: dict[str, str] = {}  # by engine: what hidden tokens last cost, in words
        self.last_reply: ReplyStream | None = None  # what can be asked for again
        self._runtime = runtime
        self._typed = ""
        self._failed_text = ""

    def view(self) -> View:
        with self.changed:
            return self._view()

    def wait(self, version: int, timeout_s: float) -> View:
        """The view as soon as it is newer than `version`, or after `timeout_s`."""
        with self.changed:
            self.changed.wait_for(lambda: self.board.version != version, timeout_s)
            return self._view()

    # What the turn's worker reports

    def set_state(self, worker: TurnWorker, state: str, **details: float | None) -> None:
        self.tell({"type": "state", "turn": worker.number, "state": state, **details})

    def heard(self, worker: TurnWorker, text: str) -> None:
        """The transcript of a spoken turn."""
        with self.changed:
            if text:
                worker.question = self.board.add(worker.log, "user", text)
            self._outbox.put({"type": "heard", "turn": worker.number, "text": text})
            told = worker.wait_told  # it may have taken its place before its words were certain
            if told is None:
                self.set_state(worker, "thinking")
            else:
                self.set_state(worker, "waiting", **told)

    def extend_reply(self, worker: TurnWorker, text: str) -> None:
        with self.changed:
            if worker.reply is None:
                worker.reply = self.board.add(worker.log, "assistant", "")
            worker.reply["content"] += text
            self.board.bump()

    def count(self, metrics: ReplyMetrics) -> None:
        """A reply has cost this much."""
        self._runtime.telemetry.reply(metrics)

    def turn_ended(self, worker: TurnWorker) -> None:
        """Called once, as the last thing of a turn."""
        with self.changed:
            worker.finish = worker.finish or "stopped"
            worker.running = False
            metrics = worker.metrics()
            worker.stages = with_thinking(worker.stages, metrics.hidden_ms if metrics else 0.0)
            self._runtime.telemetry.turn(worker.kind, worker.finish, worker.stages)
            if metrics is not None and (pace_ms := metrics.pace_ms) is not None:
                self._runtime.pace_ms[metrics.engine] = pace_ms
            if metrics is not None and metrics.hidden_tokens:
                label = self._label(metrics)
                self.silences[label] = silence_after(metrics.as_dict(), label)
            if worker.finish == "superseded":
                self._take_off(worker)
            elif worker.kind != "aside":
                self._end_answer(worker, metrics)
                self._record(worker)
            self._outbox.put(reports.ended(worker, self._label(metrics)))
            self.board.bump()

    def round_over(self, worker: TurnWorker, finish: str, heard: str, record: TurnRecord) -> None:
        """Nothing more of a turn will be played; after an interruption only `heard` was."""
        with self.changed:
            worker.playout.ended = True
            self.ledger.over(worker.number, record)
            cut = finish in ("interrupted", "stopped")
            if cut and worker.kind == "voice" and worker.speaks and worker.reply is not None:
                worker.reply["content"] = f"{heard} …" if heard else "*Stopped before it spoke.*"
                self.board.bump()

    def measured(self, worker: TurnWorker, stages: list[Stage]) -> None:
        """The first sound of the answer was audible, and these are the stages until then."""
        with self.changed:
            hidden_ms = (metrics.hidden_ms or 0.0) if (metrics := worker.metrics()) else 0.0
            plain: list[StageDict] = [{"name": s.name, "ms": s.ms} for s in stages]
            worker.stages = with_thinking(plain, hidden_ms)
            self.ledger.measured(worker)
            self._outbox.put(reports.measured(worker, self._label(worker.metrics())))

    # Inside; the lock is held

    def _view(self) -> View:
        running = self._worker is not None and self._worker.running
        messages = self.board.copy()
        return View(self.board.version, messages, self._number, running, self._failed_text)

    def _end_answer(self, worker: TurnWorker, metrics: ReplyMetrics | None) -> None:
        if worker.finish == "failed":
            self._show_failure(worker)
        elif worker.finish == "complete" and worker.reply is None:
            self.board.add(worker.log, "assistant", "*The model had nothing to say.*")
        elif worker.stopped and worker.reply is not None:
            worker.reply["content"] += f"\n\n{TIME_IS_UP if worker.timed_out else '*Stopped.*'}"
        if metrics is None or worker.reply is None:
            return
        if metrics.trimmed_turns:
            worker.reply["content"] += f"\n\n{left_out(metrics.trimmed_turns)}"
        worker.reply["label"] = answer_label(metrics.as_dict(), self._label(metrics))

    def _label(self, metrics: ReplyMetrics | None) -> str:
        return self._runtime.label(metrics.engine) if metrics is not None else ""

    def _record(self, worker: TurnWorker) -> None:
        """Put the turn into the ledger, with what was decoded for it."""
        trace, reply = None, worker.source
        if reply is not None and reply.deltas:
            self.last_reply = reply
            trace = Trace.of(reply, self._runtime.label(reply.metrics().engine))
        self.ledger.record(worker, trace, self._spoken if worker is self._worker else [])

    def _take_off(self, worker: TurnWorker) -> None:
        """The speaker went on before anything was heard: it is all part of the next turn."""
        gone = (worker.question, worker.reply)
        worker.log[:] = [message for message in worker.log if not any(message is m for m in gone)]

    def _show_failure(self, worker: TurnWorker) -> None:
        self.board.add(worker.log, "assistant", f"**This turn failed.** {worker.error}")
        if worker is self._worker and worker.log is self.board.messages and worker.reply is None:
            self._failed_text = self._typed
