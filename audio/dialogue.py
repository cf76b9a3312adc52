"""A conversation's floor: who speaks, when a turn is over, and what happens to an interruption.

    microphone -> vad -> endpointing -> transcribe -> reply, on trial -> Play, once confirmed
                   \\-> barge-in: duck, pause, then interrupt or resume

Fed with microphone blocks and playback reports, it tells its listener what happens. Turn logic
counts samples; the clock only measures. Nothing here knows of sockets, devices or screens.

Eager start: at the first short pause transcription begins, and the reply after it, on trial. When
the speaker goes on it is dropped; when the turn is confirmed what was held of it is let out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Protocol

import numpy as np

from audio.announcer import Announcer
from audio.dialogue_events import Event
from audio.hold import HoldToTalk
from audio.listening import DialogueConfig, Listening
from audio.record import TurnRecord
from audio.reply_work import OpenTurn
from audio.rounds import Request, Round
from audio.runner import Runner, ThreadRunner
from audio.speaking import Speaking
from audio.understanding import Judge, Transcribe, Understanding
from audio.waterfall import Waterfall

__all__ = ["Detector", "Dialogue", "DialogueConfig"]


class Detector(Protocol):
    """Tells speech from other sounds, block by block (`audio.vad.StreamingVad`)."""

    def probability(self, block: np.ndarray) -> float: ...

    def reset(self) -> None: ...


class Dialogue:
    """`listen`, `press`, `release` and `push` belong to one thread; all else is safe from any.

    `open_turn(request)` is a context manager around each reply that gives its parts: conversation,
    engine, pipeline; it may block (a queue, loading) and gives None when the request was stopped.
    `transcribe` takes float32 [n] at 16 kHz. `judge` gives the probability that an utterance, also
    float32 [n], is complete; without one, or where it gives None, the transcript's punctuation
    decides. `listener` gets the events of `audio.dialogue_events`, in order, from any thread, and
    must not block for long. Generations are drawn from `numbers`, which may be shared.
    """

    def __init__(
        self,
        open_turn: OpenTurn,
        transcribe: Transcribe,
        listener: Callable[[Event], None],
        detector: Detector,
        judge: Judge | None = None,
        config: DialogueConfig | None = None,
        runner: Runner | None = None,
        clock: Callable[[], float] = time.perf_counter,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.config = config or DialogueConfig()
        self._detector, self._clock = detector, clock
        self._lock = threading.RLock()
        self._announcer = Announcer(listener)
        self._emit, deliver = self._announcer.put, self._announcer.deliver
        runner = runner or ThreadRunner()
        self._replies = Speaking(open_turn, self._emit, runner, clock, self._lock, deliver)
        self._heard = Understanding(
            transcribe,
            judge,
            self._replies,
            runner,
            clock,
            count(1) if numbers is None else numbers,
            self._emit,
            self._lock,
            deliver,
        )
        self._ear = Listening(self.config, self._replies, self._heard, self._emit)
        detector.reset()

    @property
    def speak(self) -> bool:
        """Whether replies are to be spoken: those of the rounds to come."""
        return self._heard.speak

    @speak.setter
    def speak(self, on: bool) -> None:
        self._heard.speak = on

    # The microphone

    def listen(self, on: bool) -> None:
        """Begin or end hands-free listening. What was not finished is forgotten."""
        with self._lock:
            self._ear.forget()
            self._ear.freely = on
            if on:
                self._begin_take()
        self._announcer.deliver()

    def press(self) -> None:
        """Push-to-talk: whoever presses wants the floor at once."""
        with self._lock:
            self._give_up()
            self._begin_take()
            self._ear.hold = HoldToTalk()
        self._announcer.deliver()

    def release(self) -> None:
        """Push-to-talk is over: answer what was said."""
        with self._lock:
            self._ear.release()
        self._announcer.deliver()

    def push(self, block: np.ndarray) -> None:
        """The microphone's next float32 [512] at 16 kHz; what is no number is taken for silence."""
        deaf = self.config.half_duplex and self._audible
        if deaf or not np.isfinite(block).all():
            block = np.zeros_like(block)
        probability = self._detector.probability(block) if self._ear.active else 0.0
        with self._lock:
            self._heard.received += len(block)
            self._heard.stream.push(self._heard.received, self._clock())
            self._ear.push(probability, block)
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
            self._heard.note_echo()
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
            self._give_up()
            number = self._heard.number() if generation is None else generation
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
            self._give_up()
            round_ = self._heard.round(samples, 0, len(samples))
            now = self._clock()
            round_.waterfall = Waterfall(now - silence_ms / 1000)
            round_.waterfall.mark("endpointing", now)
            self._heard.hear_whole(round_)
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
        self._ear.begin_take()

    def _give_up(self) -> None:
        """Nothing that was said or answered so far matters any more."""
        self._ear.forget()
        self._heard.carried = ""
        self._replies.stop()
