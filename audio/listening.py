"""The listening half of a dialogue: from blocks to utterances, and who is interrupting whom.

All methods want the dialogue's lock held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from audio import endpointing
from audio.barge_in import BargeIn, BargeInConfig
from audio.dialogue_events import Event, SpeechBegan, SpeechOver, Trouble
from audio.endpointing import Endpointer, EndpointingConfig
from audio.frames import STT_RATE_HZ
from audio.hold import HoldToTalk
from audio.rounds import Round
from audio.speaking import Speaking
from audio.understanding import Understanding

_NOT_HEARD = "No speech was heard. Hold the button while you speak."


@dataclass(frozen=True)
class DialogueConfig:
    """`half_duplex` is deaf while a reply is audible: for a loudspeaker without echo cancelling."""

    endpointing: EndpointingConfig = field(default_factory=EndpointingConfig)
    barge_in: BargeInConfig = field(default_factory=BargeInConfig)
    eager: bool = True
    half_duplex: bool = False


class Listening:
    """`freely` is hands-free; while `hold` is there a button is held."""

    def __init__(
        self,
        config: DialogueConfig,
        replies: Speaking,
        heard: Understanding,
        emit: Callable[[Event], None],
    ) -> None:
        self.config = config
        self.freely = False
        self.hold: HoldToTalk | None = None
        self._replies, self._heard, self._emit = replies, heard, emit
        self._trial: Round | None = None  # of the utterance that may be over
        heard.complete = self.complete
        self.begin_take()

    @property
    def active(self) -> bool:
        """Whether anybody is listened to."""
        return self.freely or self.hold is not None

    def push(self, probability: float, block: np.ndarray) -> None:
        """Take the next block of the microphone."""
        if self.hold is not None:
            self.hold.push(probability, block)
        elif self.freely:
            self._freely(probability, block)

    def release(self) -> None:
        """The button was let go: answer what was said."""
        hold, self.hold = self.hold, None
        held = hold.release() if hold is not None else None
        if held is not None:
            start, end = self._base + held.start_sample, self._base + held.end_of_speech_sample
            self._heard.hear_whole(self._heard.round(held.samples, start, end))
        elif hold is not None:
            self._emit(Trouble(_NOT_HEARD))

    def begin_take(self) -> None:
        """A new stretch of microphone."""
        self._heard.stream.reset()
        self._barge_in, self._over = BargeIn(self.config.barge_in), 0
        self._listen_anew()

    def _listen_anew(self) -> None:
        self._endpointer = Endpointer(self.config.endpointing)
        self._base = self._heard.received  # the endpointer's sample 0

    def forget(self) -> None:
        """What is being said will not be answered."""
        self._drop_trial()
        self._heard.forget()
        if self.freely and self._endpointer.announced:
            self._emit(SpeechOver())
        self._listen_anew()
        self.hold = None
        self._replies.resume()

    def _freely(self, probability: float, block: np.ndarray) -> None:
        self._notice_barge_in(probability, 1000 * len(block) / STT_RATE_HZ)
        for event in self._endpointer.push(probability, block):
            self._on(event)
        decided = not self._endpointer.announced and not self._heard.undecided
        if self._barge_in.quiet and decided:
            self._heard.resume()  # too short for speech

    def _notice_barge_in(self, probability: float, ms: float) -> None:
        live = self._replies.live
        if live is None or not live.active:
            return
        if live.generation != self._over:
            self._barge_in, self._over = BargeIn(self.config.barge_in), live.generation
        elif self._barge_in.has_paused and not live.paused:
            self._barge_in.false_alarm()
        match self._barge_in.push(probability, ms):
            case "duck":
                self._replies.duck(True)
            case "unduck":
                self._replies.duck(False)
            case "pause":
                self._replies.pause()
            case "probe":
                samples, first = self._endpointer.so_far()
                self._heard.probe(samples, self._base + first)

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
    ) -> Round:
        start, end = self._base + event.start_sample, self._base + event.end_of_speech_sample
        self._trial = round_ = self._heard.round(event.samples, start, end)
        round_.pause = pause
        self._heard.hear_out(round_)
        return round_

    def _end_utterance(self, event: endpointing.SpeechEnded) -> None:
        self._emit(SpeechOver())
        round_ = self._trial or self._begin_trial(event, None)
        self._trial = None
        round_.confirmed = True
        if round_.text is None:
            self._heard.undecided.append(round_)
        self._heard.go_on(round_)

    def _drop_trial(self) -> None:
        if self._trial is not None:
            self._replies.drop(self._trial)
            self._trial = None

    def complete(self, pause: int, complete: bool) -> None:
        """An utterance was judged at pause number `pause`."""
        for event in self._endpointer.judge(pause, complete):
            self._on(event)
