"""An utterance's way to its reply: what was said, whether it is all, and what is made of it.

All methods but the deliveries want the dialogue's lock held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from audio.completeness import is_back_channel, is_complete, is_echo, is_stop, words
from audio.dialogue_events import Event, Heard, Ignored, Why
from audio.frames import STT_RATE_HZ
from audio.reply_work import DEFECT
from audio.rounds import Request, Round
from audio.runner import Runner
from audio.speaking import Speaking
from audio.waterfall import StreamClock, Waterfall
from engine.errors import UnpausedError

logger = logging.getLogger(__name__)

Transcribe = Callable[[np.ndarray], str]
Judge = Callable[[np.ndarray], "float | None"]

_ECHO_S = 8.0  # of speech that may still come back from the room
_ECHO_TAIL_S = 0.5  # after the last sound
_ECHO_LIKENESS = 0.3  # of 600 other voices the likest had 0.27; echoes 0.7, with long reverb 0.36


class Understanding:
    """`complete(pause, whether)` is called with every judgement; who listens sets it."""

    def __init__(
        self,
        transcribe: Transcribe,
        judge: Judge | None,
        replies: Speaking,
        runner: Runner,
        clock: Callable[[], float],
        numbers: Iterator[int],
        emit: Callable[[Event], None],
        lock: AbstractContextManager[object],
        deliver: Callable[[], None],
    ) -> None:
        self.transcribe, self.judge, self.replies = transcribe, judge, replies
        self.speak = True  # whether the replies of the rounds to come are to be spoken
        self.stream = StreamClock()
        self.received = 0  # samples of the microphone, over all takes
        self.undecided: list[Round] = []  # utterances that are over and still being transcribed
        self.complete: Callable[[int, bool], None] = lambda pause, complete: None
        self.carried = ""  # said before, and not answered yet
        self._runner, self._clock, self._numbers = runner, clock, numbers
        self._emit, self._lock, self._deliver = emit, lock, deliver
        self._echo_until, self._echo_text = 0, ""

    def number(self) -> int:
        """Of the next round."""
        return next(self._numbers)

    def forget(self) -> None:
        """What was said and is not decided yet will not be answered."""
        while self.undecided:
            self.replies.drop(self.undecided.pop())

    def interrupt(self) -> None:
        """Stop the reply under way; what it did not get to answer is carried on."""
        if self.replies.active:
            self.note_echo()
            self.carried = f"{self.carried} {self.replies.interrupt()}".strip()

    def probe(self, samples: np.ndarray, start_sample: int) -> None:
        """Somebody has been speaking over the reply for long: if that has words of their own, it
        is an interruption, before it is over.
        """
        live = self.replies.live

        def weigh(result: str | UnpausedError) -> None:
            with self._lock:
                same = live is not None and live is self.replies.live
                if (
                    same
                    and isinstance(result, str)
                    and not self._ignored(result, samples, start_sample)
                ):
                    self.interrupt()
            self._deliver()

        self._runner.run(partial(self._hearing, samples), weigh)

    def resume(self) -> None:
        """It was no interruption."""
        live = self.replies.live
        if live is not None and live.paused:
            self.replies.resume()

    def round(self, samples: np.ndarray, start: int, end: int) -> Round:
        """A new round for `samples`, whose speech ended at sample `end` of the microphone."""
        request = Request(self.number(), "voice", self.speak)
        waterfall = Waterfall(self.stream.time_of(end))
        waterfall.mark("endpointing", self._clock())
        return Round(request, waterfall, samples, speech_end=end - start, start_sample=start)

    def hear_whole(self, round_: Round) -> None:
        """Nobody will go on: it is a turn, even if nothing is understood."""
        round_.pressed = round_.confirmed = True
        self.replies.announce(round_)
        self.hear_out(round_)

    def hear_out(self, round_: Round) -> None:
        """Find out what was said."""
        self._runner.run(partial(self._hearing, round_.samples), partial(self._heard, round_))

    def _judge_it(self, round_: Round) -> None:
        """Find out whether it is complete, when that is not known.

        Only now: transcription takes every core and is waited for, while the first words of a
        reply leave one free; and it takes longer until they can be heard than to judge.
        """
        wanted = round_.pause is not None and round_.why_ignored is None
        if wanted and self.judge is not None and not round_.confirmed:
            judged = partial(self._judged, round_)
            self._runner.run(partial(self._judging, round_.samples), judged)

    def _hearing(self, samples: np.ndarray) -> Iterator[str | UnpausedError]:
        try:
            yield self.transcribe(samples)
        except UnpausedError as error:
            yield error
        except Exception:
            logger.exception("transcription failed")
            yield UnpausedError(DEFECT)

    def _heard(self, round_: Round, result: str | UnpausedError) -> None:
        with self._lock:
            if not round_.dropped and not round_.over:
                if round_ in self.undecided:
                    self.undecided.remove(round_)
                round_.waterfall.mark("transcription", self._clock())
                if isinstance(result, UnpausedError):
                    round_.text, round_.failure = "", str(result)
                else:
                    self._weigh(round_, result)
                    self._judge_it(round_)
                self._consider(round_)
                self.go_on(round_)
        self._deliver()

    def _weigh(self, round_: Round, text: str) -> None:
        """Take what was said for a turn, or for nothing."""
        round_.said = round_.text = text
        if round_.pressed:
            round_.why_ignored = None if words(text) else "noise"
        else:
            round_.why_ignored = self._ignored(text, round_.samples, round_.start_sample)
        if round_.why_ignored == "stop":
            self.replies.stop()
            self.carried = ""
        if round_.why_ignored is not None:
            if not self.carried:
                return
            round_.why_ignored, text = None, ""  # what was said before still wants its answer
        if not round_.pressed:
            self.interrupt()
        round_.text = round_.request.text = f"{self.carried} {text}".strip()
        if not round_.confirmed:
            self._emit(Heard(round_.generation, round_.text, final=False))
        self.replies.answer(round_)

    def _ignored(self, text: str, samples: np.ndarray, start_sample: int) -> Why | None:
        """Why what was said from `start_sample` on is no turn, or None when it is one."""
        if not words(text):
            return "noise"
        live = self.replies.live if self.replies.active else None
        if live is not None or start_sample <= self._echo_until:
            spoken = live.playback.recent(_ECHO_S) if live is not None else ""
            likeness = self.replies.echo.likeness(samples, start_sample)
            if likeness >= _ECHO_LIKENESS or is_echo(text, f"{self._echo_text} {spoken}"):
                return "echo"
        if live is None:
            return None
        return "stop" if is_stop(text) else "back_channel" if is_back_channel(text) else None

    def go_on(self, round_: Round) -> None:
        """Once the utterance is over and its text is known, the round counts or does not."""
        if not round_.confirmed or round_.text is None or round_.begun or round_.dropped:
            return
        if round_.why_ignored is None or round_.pressed:
            self.carried = ""
            self.replies.confirm(round_)
            return
        round_.dropped = True
        if self.replies.active or round_.why_ignored == "stop":
            self._emit(Ignored(round_.text, round_.why_ignored))
        self.resume()

    def note_echo(self) -> None:
        """Remember what was just played: the room gives it back a little later."""
        live = self.replies.live
        if live is not None and live.playback.played:
            playback = live.playback
            self._echo_text = playback.recent(_ECHO_S)
            self._echo_until = self.received + int(_ECHO_TAIL_S * STT_RATE_HZ)
            played_s = playback.played / playback.rate_hz
            if not live.paused:
                self.replies.echo.located(live.generation, played_s, self.received)

    # Is the utterance complete?

    def _judging(self, samples: np.ndarray) -> Iterator[float | None]:
        assert self.judge is not None
        try:
            yield self.judge(samples)
        except Exception:
            logger.exception("judging a pause failed")
            yield None

    def _judged(self, round_: Round, complete: float | None) -> None:
        with self._lock:
            round_.judged, round_.sounds_complete = True, complete
            self._consider(round_)
        self._deliver()

    def _consider(self, round_: Round) -> None:
        """Tell the endpointer once everything is known. Earlier would gain nothing: a reply needs
        the text, too.
        """
        no_reply = round_.why_ignored is not None or bool(round_.failure)
        known = round_.text is not None and (no_reply or round_.judged or self.judge is None)
        if not known or round_.confirmed or round_.pause is None:
            return
        complete = no_reply or is_complete(round_.said, round_.sounds_complete)
        if complete is not None:  # else the patience of an unjudged pause is just right
            self.complete(round_.pause, complete)
