"""The replying half of a dialogue: makes replies, lets them out, and takes them back.

One reply is live at a time. Every event carries its round's generation; what comes late from a
round that was stopped is dropped here. All methods want the dialogue's lock held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from audio.dialogue_events import (
    Duck,
    Event,
    Finish,
    Flush,
    Heard,
    Measured,
    Pause,
    Play,
    PlayEnd,
    Reply,
    Resume,
    RoundBegan,
    RoundOver,
    TakenBack,
)
from audio.echo_guard import EchoGuard
from audio.events import Clause, Delta, Speech, TurnDone
from audio.events import Event as TurnEvent
from audio.record import TurnRecord
from audio.reply_work import ENDED, OpenTurn, reply_work
from audio.rounds import Parts, Round
from audio.runner import Runner

MAX_RECORDS = 16
_STAGE_OF = {Delta: "prefill", Clause: "first_clause", Speech: "synthesis"}


class Speaking:
    """See the module. `lock` is the dialogue's; `deliver` hands out what was emitted under it."""

    def __init__(
        self,
        open_turn: OpenTurn,
        emit: Callable[[Event], None],
        runner: Runner,
        clock: Callable[[], float],
        lock: AbstractContextManager[object],
        deliver: Callable[[], None],
    ) -> None:
        self._open_turn, self._emit, self._runner, self._clock = open_turn, emit, runner, clock
        self._lock, self._deliver = lock, deliver
        self._last: Round | None = None  # whose reply was begun last
        self.live: Round | None = None
        self.echo = EchoGuard()
        self.records: deque[TurnRecord] = deque(maxlen=MAX_RECORDS)

    @property
    def active(self) -> bool:
        """Whether a reply is under way: being made, or not yet played."""
        return self.live is not None and self.live.active

    # A round's way

    def answer(self, round_: Round) -> None:
        """Begin the reply to `round_.text`. It is let out by `confirm`."""
        before, self._last = self._last, round_
        round_.answering = True
        work = partial(reply_work, round_, before, self._open_turn, self._lock)
        self._runner.run(work, partial(self._take, round_))

    def announce(self, round_: Round) -> None:
        """The round counts, whatever its text will be."""
        if self.live is not round_:
            self.live = round_
            self._emit(RoundBegan(round_.generation, round_.kind))

    def confirm(self, round_: Round) -> None:
        """The round counts and its text is known: tell of it, and let out what was held."""
        self.announce(round_)
        round_.begun = True
        if round_.kind == "voice":
            self._emit(Heard(round_.generation, round_.text or "", final=True))
        if round_.failure or not round_.text:
            round_.finish = "failed" if round_.failure else "no_speech"
            self._close(round_)
            return
        self._let_out(round_)

    def drop(self, round_: Round) -> None:
        """Forget a round that was on trial."""
        round_.dropped = True
        round_.stop()
        self._emit(TakenBack(round_.generation))

    # The live reply

    def duck(self, on: bool) -> None:
        if self.active and self.live:
            self._emit(Duck(self.live.generation, on))

    def pause(self) -> None:
        """Silence, and nothing more is let out until `resume` or `interrupt`."""
        if self.live is not None and self.active and not self.live.paused:
            self.live.paused = True
            self._emit(Pause(self.live.generation))

    def resume(self) -> None:
        """It was no interruption: go on."""
        live = self.live
        if live is not None and live.paused:
            live.paused = False
            self.echo.interrupted()
            self._emit(Resume(live.generation))
            self._let_out(live)

    def interrupt(self) -> str:
        """Stop the live reply for the speaker's sake.

        What was said before is returned when nothing was heard of the reply to it: then both
        belong to one turn, and the first leaves no trace.
        """
        live = self.live
        if live is None or not live.active:
            return ""
        unheard = live.kind == "voice" and live.request.speak and live.playback.played == 0
        if unheard:
            live.dropped = True
            self._stop(live, "superseded")
            return live.text or ""
        self._stop(live, "interrupted")
        return ""

    def stop(self) -> None:
        """Stop the live reply because that was asked for."""
        if self.live is not None and self.live.active:
            self._stop(self.live, "stopped")

    def mute(self) -> None:
        """Nothing more of the live reply will be played; its words go on."""
        live = self.live
        if live is not None and not live.over and not live.playback.dropped:
            live.playback.drop()
            self._emit(Flush(live.generation))
            self._finish_if_played(live)

    def played(self, generation: int, samples: int, waited_ms: float | None, ago_ms: float) -> None:
        """`samples` of the generation's speech were played; see `Dialogue.played`."""
        live = self.live
        if live is None or live.generation != generation or live.over:
            return
        live.playback.report(samples)
        waterfall = live.waterfall
        if samples > 0 and live.sent_s is not None and not waterfall.has("playback"):
            waterfall.played(live.sent_s, self._clock(), waited_ms, ago_ms)
            self._emit(Measured(generation, waterfall.stages(), waterfall.total_ms))
        self._finish_if_played(live)

    # Inside

    def _stop(self, round_: Round, finish: Finish) -> None:
        round_.finish, round_.paused = finish, False
        round_.stop()
        self._emit(Flush(round_.generation))
        if round_.generated or not round_.answering:
            self._close(round_)

    def _take(self, round_: Round, result: object) -> None:
        """One result of the work, from its thread."""
        with self._lock:
            if isinstance(result, Parts):
                round_.waterfall.mark("queue", self._clock())
            elif result is ENDED:
                self._work_ended(round_)
            else:
                self._event(round_, result)  # type: ignore[arg-type]
        self._deliver()

    def _event(self, round_: Round, event: TurnEvent) -> None:
        round_.take(event)
        stage = _STAGE_OF.get(type(event))
        if stage is not None:
            round_.waterfall.mark(stage, self._clock())
        if not round_.begun:
            round_.held.append(event)
        else:
            self._let_event_out(round_, event)

    def _let_out(self, round_: Round) -> None:
        held, round_.held = round_.held, []
        for event in held:
            self._let_event_out(round_, event)
        if round_.generated and not round_.over:
            round_.settle()
            self._end_of_speech(round_)

    def _let_event_out(self, round_: Round, event: TurnEvent) -> None:
        if round_.dropped:
            return
        stopped = round_.request.stopped
        if isinstance(event, Speech):
            if round_.paused:
                round_.held.append(event)
            elif not stopped and not round_.playback.dropped:
                self._play(round_, event)
        elif isinstance(event, TurnDone):
            round_.settle()  # the conversation knows of it before anybody else
            event = replace(event, stages=round_.waterfall.stages())
            self._emit(Reply(round_.generation, event))
        elif not (stopped and isinstance(event, Delta | Clause)):
            self._emit(Reply(round_.generation, event))

    def _play(self, round_: Round, speech: Speech) -> None:
        if round_.sent_s is None:
            round_.sent_s = self._clock()
            round_.waterfall.mark("held", round_.sent_s)
        round_.count(speech)
        self.echo.spoken(round_.generation, speech.pcm, speech.rate_hz)
        self._emit(Play(round_.generation, speech.pcm, speech.rate_hz, speech.text))

    def _work_ended(self, round_: Round) -> None:
        round_.generated = True
        if round_.begun:
            round_.settle()
        if round_.dropped or round_.finish is not None:
            if round_.begun:
                self._close(round_)
        elif round_.begun:
            self._end_of_speech(round_)

    def _end_of_speech(self, round_: Round) -> None:
        if round_.held:  # paused: more is to be played
            return
        if round_.playback.total and not round_.playback.ended:
            self._emit(PlayEnd(round_.generation, round_.playback.total))
        round_.playback.ended = True
        self._finish_if_played(round_)

    def _finish_if_played(self, round_: Round) -> None:
        if round_.generated and round_.playback.finished and not round_.held:
            self._close(round_)

    def _close(self, round_: Round) -> None:
        if round_.over:
            return
        if round_.finish is None:
            stopped = round_.done is not None and round_.done.finish == "stopped"
            round_.finish = "stopped" if stopped or round_.done is None else "complete"
        record = round_.close()
        if round_.ended.is_set():
            round_.settle()
        self.records.append(record)
        over = RoundOver(round_.generation, round_.finish, record.heard, round_.failure, record)
        self._emit(over)
