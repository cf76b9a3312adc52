"""A socket's microphone: frames that may come too fast, and the takes that they belong to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from audio.dialogue import Dialogue
from audio.frames import from_pcm16
from audio.vad import BLOCK
from ui.protocol import MicrophoneFrame, Talk

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


class Hearing:
    """The microphone of one session. One caller at a time, off the event loop: it runs a model."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._talk = Talk(take=0, on=False, mode="hold")
        self._rest: np.ndarray = np.zeros(0, np.float32)  # less than a block

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
            self._dialogue.push(block)

    def _switch(self, talk: Talk) -> None:
        if talk.take < self._talk.take:
            return
        was, self._talk = self._talk, talk
        self._rest = self._rest[:0]
        if was.on and was.mode == "hold":
            self._dialogue.release()
        elif was.on:
            self._dialogue.listen(False)
        if talk.on and talk.mode == "hold":
            self._dialogue.press()
        elif talk.on:
            self._dialogue.listen(True)
