"""A conversation's floor: who speaks, when a turn is over, and what happens to an interruption.

    microphone -> vad -> endpointing -> transcribe -> reply, on trial -> Play, once confirmed
                   \\-> barge-in: duck, pause, then interrupt or resume

Fed with microphone blocks and playback reports, it tells its listener what happens. Turn logic
counts samples; the clock only measures. Nothing here knows of sockets, devices or screens.

Eager start: at the first short pause transcription begins, and the reply after it, on trial. When
the speaker goes on it is dropped; when the turn is confirmed what was held of it is let out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol

import numpy as np

from audio import endpointing
from audio.announcer import Announcer
from audio.barge_in import BargeIn, BargeInConfig
from audio.completeness import (
    is_back_channel,
    is_complete,
    is_echo,
    is_stop,
    words,
)
from audio.dialogue_events import Event, Heard, Ignored, SpeechBegan, SpeechOver, Trouble, Why
from audio.endpointing import Endpointer, EndpointingConfig
from audio.frames import STT_RATE_HZ
from audio.hold import HoldToTalk
from audio.record import TurnRecord
from audio.rounds import Request, Round
from audio.runner import Runner, ThreadRunner
from audio.speaking import DEFECT, OpenTurn, Speaking
from audio.waterfall import StreamClock, Waterfall
from engine.errors import UnpausedError

logger = logging.getLogger(__name__)

_ECHO_S = 8.0  # of speech that may still come back from the room
_ECHO_TAIL_S = 0.5  # after the last sound
_NOT_HEARD = "No speech was heard. Hold the button while you speak."


class Detector(Protocol):
    """Tells speech from other sounds, block by block (`audio.vad.StreamingVad`)."""

    def probability(self, block: np.ndarray) -> float: ...

    def reset(self) -> None: ...


@dataclass(frozen=True)
class DialogueConfig:
    """`half_duplex` is deaf while a reply is audible: for a loudspeaker without echo cancelling."""

    endpointing: EndpointingConfig = field(default_factory=EndpointingConfig)
    barge_in: BargeInConfig = field(default_factory=BargeInConfig)
    eager: bool = True
    half_duplex: bool = False


class Dialogue:
    """`listen`, `press`, `release` and `push` belong to one thread; all else is safe from any.

    `open_turn(request)` is a context manager around each reply that gives its parts: conversation,
    engine, pipeline; it may block (a queue, loading) and gives None when the request was stopped.
    `transcribe` takes float32 [n] at 16 kHz. `judge` gives the probability that an utterance, also
    float32 [n], is complete; without one, or where it gives None,
    the transcript's punctuation decides. `listener` gets the
    events of `audio.dialogue_events`, in order, from any thread, and must not block for long.
    Generations are drawn from `numbers`, which may be shared.
    """

    def __init__(
        self,
        open_turn: OpenTurn,
        transcribe: Callable[[np.ndarray], str],
        listener: Callable[[Event], None],
        detector: Detector,
        judge: Callable[[np.ndarray], float | None] | None = None,
        config: DialogueConfig | None = None,
        runner: Runner | None = None,
        clock: Callable[[], float] = time.perf_counter,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.config = config or DialogueConfig()
        self.speak = True  # whether replies are to be spoken; of the rounds to come
        self._transcribe, self._judge, self._detector = transcribe, judge, detector
        self._runner, self._clock = runner or ThreadRunner(), clock
        self._lock = threading.RLock()
        self._announcer = Announcer(listener)
        self._emit = self._announcer.put
        self._replies = Speaking(
            open_turn, self._emit, self._runner, clock, self._lock, self._announcer.deliver
        )
        self._numbers = count(1) if numbers is None else numbers
        self._stream = StreamClock()
        self._received = 0  # samples of the microphone, over all takes
        self._listening = False
        self._hold: HoldToTalk | None = None
        self._trial: Round | None = None  # of the utterance that may be over
        self._undecided: list[Round] = []  # utterances that are over and still being transcribed
        self._carried = ""  # said before, and not answered yet
        self._begin_take()

    # The microphone

    def listen(self, on: bool) -> None:
        """Begin or end hands-free listening. What was not finished is forgotten."""
        with self._lock:
            self._forget()
            self._listening = on
            if on:
                self._begin_take()
        self._announcer.deliver()

    def press(self) -> None:
        """Push-to-talk: whoever presses wants the floor at once."""
        with self._lock:
            self._forget()
            self._begin_take()
            self._hold = HoldToTalk()
            self._carried = ""
            self._replies.stop()
        self._announcer.deliver()

    def release(self) -> None:
        """Push-to-talk is over: answer what was said."""
        with self._lock:
            hold, self._hold = self._hold, None
            if hold is not None:
                held = hold.release()
                if held is None:
                    self._emit(Trouble(_NOT_HEARD))
                else:
                    end = self._base + held.end_of_speech_sample
                    round_ = self._round(held.samples, self._base + held.start_sample, end)
                    self._hear_whole(round_)
        self._announcer.deliver()

    def push(self, block: np.ndarray) -> None:
        """The microphone's next float32 [512] at 16 kHz; what is no number is taken for silence."""
        deaf = self.config.half_duplex and self._audible
        if deaf or not np.isfinite(block).all():
            block = np.zeros_like(block)
        listening = self._listening or self._hold is not None
        probability = self._detector.probability(block) if listening else 0.0
        with self._lock:
            self._received += len(block)
            self._stream.push(self._received, self._clock())
            if self._hold is not None:
                self._hold.push(probability, block)
            elif self._listening:
                self._listen(probability, block)
        self._announcer.deliver()

    # The player

    def played(
        self, generation: int, samples: int, waited_ms: float | None = None, ago_ms: float = 0.0
    ) -> None:
        """So many `samples` of the generation's speech were played, at the rate they came with.

        The first report with any says when the first was audible: `ago_ms` before it was sent.
        `waited_ms` is how long it had been with the player by then; with it, what is left of the
        time is the way there and back. None is a player without a way between.
        """
        with self._lock:
            self._replies.played(generation, samples, waited_ms, ago_ms)
            self._note_echo()
        self._announcer.deliver()

    def mute(self) -> None:
        """Nothing more of the reply under way can or shall be played; its words go on."""
        with self._lock:
            self._replies.mute()
        self._announcer.deliver()

    # Whoever else takes part

    def say(
        self,
        text: str,
        options: object = None,
        generation: int | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> int:
        """Answer typed `text`; a reply under way is stopped. Returns the generation.

        `options` go with the request, for whoever opens the turn. A `generation` that is given
        was drawn from the numbers. `on_stop` is called when the round is stopped.
        """
        with self._lock:
            self._forget()
            self._carried = ""
            self._replies.stop()
            number = next(self._numbers) if generation is None else generation
            request = Request(number, "text", self.speak, options)
            if on_stop is not None:
                request.on_stop(on_stop)
            round_ = Round(request, Waterfall(self._clock()), text=text, confirmed=True)
            request.text = text
            self._replies.answer(round_)
            self._replies.confirm(round_)
        self._announcer.deliver()
        return round_.generation

    def answer(self, samples: np.ndarray, silence_ms: float = 0.0) -> int:
        """Answer speech that came another way: float32 [n] at 16 kHz, which ended `silence_ms`
        before now. A reply under way is stopped. Returns the generation.
        """
        with self._lock:
            self._forget()
            self._carried = ""
            self._replies.stop()
            round_ = self._round(samples, 0, len(samples))
            now = self._clock()
            round_.waterfall = Waterfall(now - silence_ms / 1000)
            round_.waterfall.mark("endpointing", now)
            self._hear_whole(round_)
        self._announcer.deliver()
        return round_.generation

    def stop(self, samples: int | None = None) -> None:
        """Stop the reply under way, of whose speech `samples` were played, if that is known."""
        with self._lock:
            live = self._replies.live
            if live is not None and samples is not None:
                live.playback.report(samples)
            self._replies.stop()
        self._announcer.deliver()

    def close(self) -> None:
        """Stop everything; nothing follows."""
        self.listen(False)
        self.stop()

    @property
    def active(self) -> bool:
        """Whether a reply is under way: being made, or not yet played."""
        return self._replies.active

    @property
    def records(self) -> list[TurnRecord]:
        """The latest rounds that are over, oldest first."""
        with self._lock:
            return list(self._replies.records)

    # Inside; the lock is held

    @property
    def _audible(self) -> bool:
        live = self._replies.live
        return live is not None and live.playback.playing

    def _begin_take(self) -> None:
        self._detector.reset()
        self._stream.reset()
        self._endpointer = Endpointer(self.config.endpointing)
        self._barge_in = BargeIn(self.config.barge_in)
        self._base = self._received  # the endpointer's sample 0
        self._echo_until, self._echo_text = 0, ""

    def _forget(self) -> None:
        """What is being said will not be answered."""
        self._drop_trial()
        while self._undecided:
            self._replies.drop(self._undecided.pop())
        if self._listening and self._endpointer.announced:
            self._emit(SpeechOver())
        self._endpointer = Endpointer(self.config.endpointing)
        self._base = self._received
        self._hold = None
        self._replies.resume()

    def _listen(self, probability: float, block: np.ndarray) -> None:
        self._notice_barge_in(probability, 1000 * len(block) / STT_RATE_HZ)
        for event in self._endpointer.push(probability, block):
            self._on(event)
        quiet = self._barge_in.quiet_ms > self._barge_in.config.gap_ms
        if quiet and not self._endpointer.announced and not self._undecided:
            self._resume()  # too short for speech

    def _notice_barge_in(self, probability: float, ms: float) -> None:
        if not self._replies.active:
            self._barge_in.reset()
            return
        match self._barge_in.push(probability, ms):
            case "duck":
                self._replies.duck(True)
            case "unduck":
                self._replies.duck(False)
            case "pause":
                self._replies.pause()
            case "interrupt":
                self._interrupt()

    def _resume(self) -> None:
        live = self._replies.live
        if live is not None and live.paused:
            self._replies.resume()
            self._barge_in.reset()

    def _interrupt(self) -> None:
        if self._replies.active:
            self._note_echo()
            self._carried = f"{self._carried} {self._replies.interrupt()}".strip()
            self._barge_in.reset()

    def _on(self, event: endpointing.Event) -> None:
        match event:
            case endpointing.SpeechStarted():
                self._emit(SpeechBegan(self._base + event.start_sample))
            case endpointing.SpeechPaused() if self.config.eager:
                self._begin_trial(event, event.number)
            case endpointing.SpeechResumed():
                self._drop_trial()
            case endpointing.SpeechEnded():
                self._end_utterance(event)

    def _begin_trial(
        self, event: endpointing.SpeechPaused | endpointing.SpeechEnded, pause: int | None
    ) -> None:
        start, end = self._base + event.start_sample, self._base + event.end_of_speech_sample
        self._trial = self._round(event.samples, start, end)
        self._trial.pause = pause
        if pause is not None and self._judge is not None:
            judged = partial(self._judged, self._trial)
            self._runner.run(partial(self._judging, event.samples), judged)
        self._hear_out(self._trial)

    def _end_utterance(self, event: endpointing.SpeechEnded) -> None:
        self._emit(SpeechOver())
        if self._trial is None:
            self._begin_trial(event, None)
        round_, self._trial = self._trial, None
        if round_ is not None:
            round_.confirmed = True
            if round_.text is None:
                self._undecided.append(round_)
            self._go_on(round_)

    def _drop_trial(self) -> None:
        if self._trial is not None:
            self._replies.drop(self._trial)
            self._trial = None

    # An utterance's way to its reply

    def _round(self, samples: np.ndarray, start: int, end: int) -> Round:
        request = Request(next(self._numbers), "voice", self.speak)
        waterfall = Waterfall(self._stream.time_of(end))
        waterfall.mark("endpointing", self._clock())
        return Round(request, waterfall, samples, speech_end=end - start, start_sample=start)

    def _hear_whole(self, round_: Round) -> None:
        """Nobody will go on: it is a turn, even if nothing is understood."""
        round_.pressed = round_.confirmed = True
        self._replies.announce(round_)
        self._hear_out(round_)

    def _hear_out(self, round_: Round) -> None:
        self._runner.run(partial(self._hearing, round_.samples), partial(self._heard, round_))

    def _hearing(self, samples: np.ndarray) -> Iterator[str | UnpausedError]:
        try:
            yield self._transcribe(samples)
        except UnpausedError as error:
            yield error
        except Exception:
            logger.exception("transcription failed")
            yield UnpausedError(DEFECT)

    def _heard(self, round_: Round, result: str | UnpausedError) -> None:
        with self._lock:
            if not round_.dropped and not round_.over:
                if round_ in self._undecided:
                    self._undecided.remove(round_)
                round_.waterfall.mark("transcription", self._clock())
                if isinstance(result, UnpausedError):
                    round_.text, round_.failure = "", str(result)
                else:
                    self._weigh(round_, result)
                self._consider(round_)
                self._go_on(round_)
        self._announcer.deliver()

    def _weigh(self, round_: Round, text: str) -> None:
        """Take what was said for a turn, or for nothing."""
        round_.said = round_.text = text
        round_.why_ignored = self._why_ignored(text, round_)
        if round_.why_ignored == "stop":
            self._replies.stop()
            self._carried = ""
        if round_.why_ignored is not None:
            if not self._carried:
                return
            round_.why_ignored, text = None, ""  # what was said before still wants its answer
        if not round_.pressed:
            self._interrupt()
        round_.text = round_.request.text = f"{self._carried} {text}".strip()
        if not round_.confirmed:
            self._emit(Heard(round_.generation, round_.text, final=False))
        self._replies.answer(round_)

    def _why_ignored(self, text: str, round_: Round) -> Why | None:
        if not words(text):
            return "noise"
        if round_.pressed:
            return None
        live = self._replies.live if self._replies.active else None
        spoken = live.playback.recent(_ECHO_S) if live is not None else ""
        if round_.start_sample <= self._echo_until:
            spoken = f"{self._echo_text} {spoken}"
        if is_echo(text, spoken):
            return "echo"
        if live is None:
            return None
        return "stop" if is_stop(text) else "back_channel" if is_back_channel(text) else None

    def _go_on(self, round_: Round) -> None:
        """Once the utterance is over and its text is known, the round counts or does not."""
        if not round_.confirmed or round_.text is None or round_.begun or round_.dropped:
            return
        if round_.why_ignored is None or round_.pressed:
            self._carried = ""
            self._replies.confirm(round_)
            return
        round_.dropped = True
        if self._replies.active or round_.why_ignored == "stop":
            self._emit(Ignored(round_.text, round_.why_ignored))
        self._resume()

    def _note_echo(self) -> None:
        """Remember what was just played: the room gives it back a little later."""
        live = self._replies.live
        if live is not None and live.playback.played:
            self._echo_text = live.playback.recent(_ECHO_S)
            self._echo_until = self._received + int(_ECHO_TAIL_S * STT_RATE_HZ)

    # Is the utterance complete?

    def _judging(self, samples: np.ndarray) -> Iterator[float | None]:
        assert self._judge is not None
        try:
            yield self._judge(samples)
        except Exception:
            logger.exception("judging a pause failed")
            yield None

    def _judged(self, round_: Round, complete: float | None) -> None:
        with self._lock:
            round_.judged, round_.sounds_complete = True, complete
            self._consider(round_)
        self._announcer.deliver()

    def _consider(self, round_: Round) -> None:
        """Tell the endpointer once everything is known. Earlier would gain nothing: a reply needs
        the text, too.
        """
        known = round_.text is not None and (round_.judged or self._judge is None)
        if not known or round_ is not self._trial or round_.pause is None:
            return
        complete = is_complete(round_.said, round_.sounds_complete)
        for event in self._endpointer.judge(round_.pause, complete):
            self._on(event)
