"""From a socket's microphone frames to spoken turns: push-to-talk, hands-free and interruption."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from audio.endpointing import SpeechEnded, SpeechStarted, acoustic_end
from audio.frames import STT_RATE_HZ, from_pcm16
from engine.errors import UnpausedError
from ui.protocol import MicrophoneFrame, Talk
from ui.services import Services
from ui.session import Session
from ui.words import sentence

BLOCK = 512  # samples that the voice activity detector looks at
VOICED = 0.5  # probability of speech
MIN_VOICED_MS = 200  # less is a click or a cough; the transcriber's own gates are stricter
BARGE_IN_MS = 300
BARGE_IN_GAP_MS = 200  # a longer pause begins the count anew
MARGIN_S = 0.4  # kept around push-to-talk speech
MAX_HOLD_S = 120
MAX_QUEUED_FRAMES = 150  # 3 s


class Inbox:
    """What came from the client and was not yet listened to; the oldest frames give way."""

    def __init__(self, max_frames: int = MAX_QUEUED_FRAMES) -> None:
        self.dropped = 0  # frames, since the start
        self._max = max_frames
        self._items: deque[MicrophoneFrame | Talk] = deque()

    def put(self, item: MicrophoneFrame | Talk) -> None:
        if len(self._items) >= self._max:
            oldest = next((i for i in self._items if isinstance(i, MicrophoneFrame)), None)
            if oldest is None:  # a flood of `Talk`s: the newest decides
                self._items.popleft()
            else:
                self._items.remove(oldest)
                self.dropped += 1
        self._items.append(item)

    def take(self) -> list[MicrophoneFrame | Talk]:
        items = list(self._items)
        self._items.clear()
        return items


class Interruption:
    """Tells speech that means to interrupt from a cough. Pure; its clock is the blocks fed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._voiced_ms = 0.0
        self._gap_ms = 0.0

    def push(self, probability: float, block_ms: float) -> bool:
        """True once there were `BARGE_IN_MS` of speech without a long gap."""
        if probability >= VOICED:
            self._voiced_ms += block_ms
            self._gap_ms = 0.0
        else:
            self._gap_ms += block_ms
            if self._gap_ms > BARGE_IN_GAP_MS:
                self.reset()
        return self._voiced_ms >= BARGE_IN_MS


class Hearing:
    """The microphone of one session. One caller at a time, off the event loop: it runs a model."""

    def __init__(self, session: Session, services: Services) -> None:
        self._session = session
        self._vad = services.make_vad()
        self._endpointer = services.make_endpointer()
        self._make_endpointer = services.make_endpointer
        self._interruption = Interruption()
        self._talk = Talk(take=0, on=False, mode="hold")
        self._rest: np.ndarray = np.zeros(0, np.float32)  # less than a block
        self._held: list[np.ndarray] = []  # blocks of a push-to-talk take
        self._voiced: list[int] = []  # which of them are speech

    def feed(self, items: Sequence[MicrophoneFrame | Talk]) -> None:
        """Listen to what came, in order. Frames of any but the current take are stale."""
        for item in items:
            if isinstance(item, Talk):
                self._switch(item)
            elif self._talk.on and item.take == self._talk.take:
                self._add(from_pcm16(item.pcm))

    def _add(self, samples: np.ndarray) -> None:
        self._rest = np.concatenate([self._rest, samples])
        while len(self._rest) >= BLOCK:
            block, self._rest = self._rest[:BLOCK], self._rest[BLOCK:]
            self._listen(block)

    def _switch(self, talk: Talk) -> None:
        if talk.take < self._talk.take:
            return
        ended = self._talk.on and not talk.on
        mode, self._talk = self._talk.mode, talk
        if ended and mode == "hold":
            self._end_hold()
        if talk.on:
            self._begin_take()
            if talk.mode == "hold":
                self._session.stop()  # who presses the button wants the floor
        else:
            self._session.tell({"type": "hearing", "on": False})

    def _begin_take(self) -> None:
        self._rest = self._rest[:0]
        self._held, self._voiced = [], []
        self._vad.reset()
        self._endpointer = self._make_endpointer()
        self._interruption.reset()

    def _listen(self, block: np.ndarray) -> None:
        probability = self._vad.probability(block)
        if self._talk.mode == "hold":
            self._hold(probability, block)
        else:
            self._listen_freely(probability, block)

    def _hold(self, probability: float, block: np.ndarray) -> None:
        if len(self._held) * BLOCK >= MAX_HOLD_S * STT_RATE_HZ:
            return  # a stuck key; what was said so far is still answered
        if probability >= VOICED:
            self._voiced.append(len(self._held))
        self._held.append(block)

    def _end_hold(self) -> None:
        block_ms = 1000 * BLOCK / STT_RATE_HZ
        if len(self._voiced) * block_ms < MIN_VOICED_MS:
            self._say("No speech was heard. Hold the button while you speak.")
            return
        held = np.concatenate(self._held)
        end = acoustic_end(held, (self._voiced[-1] + 1) * BLOCK)
        margin = int(MARGIN_S * STT_RATE_HZ)
        spoken = held[max(0, self._voiced[0] * BLOCK - margin) : end + margin]
        self._answer(spoken, endpointing_ms=1000 * (len(held) - end) / STT_RATE_HZ)

    def _listen_freely(self, probability: float, block: np.ndarray) -> None:
        interrupts = self._interruption.push(probability, 1000 * BLOCK / STT_RATE_HZ)
        if interrupts and self._session.active:
            self._session.stop()
        for event in self._endpointer.push(probability, block):
            if isinstance(event, SpeechStarted):
                self._session.tell({"type": "hearing", "on": True})
            elif isinstance(event, SpeechEnded):
                self._session.tell({"type": "hearing", "on": False})
                self._interruption.reset()
                if not self._session.active:  # else it was too short to interrupt
                    self._answer(event.samples, event.silence_ms)

    def _answer(self, samples: np.ndarray, endpointing_ms: float) -> None:
        try:
            self._session.start_voice(samples, endpointing_ms)
        except UnpausedError as error:
            self._say(sentence(str(error)))

    def _say(self, message: str) -> None:
        self._session.tell({"type": "error", "message": message})
