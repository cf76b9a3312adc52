"""Where a dialogue takes place: this machine's sound devices, or two files that stand for them.

Both run a loop on one thread: what was heard goes to the dialogue, what it says to the player.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from audio.dialogue import Dialogue
from audio.frames import STT_RATE_HZ, to_pcm16
from audio.outlet import Outlet
from audio.player import Player
from audio.runner import Runner, ThreadRunner
from audio.soundcard import BLOCK, Soundcard
from engine.errors import UnpausedError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S = 0.01
_SWITCH_S = 0.001  # of Python code that a callback may have to wait for; usually 5 ms
STEP = 128  # samples of a file at a time: 8 ms, the precision of what is measured
FILE_RATE_HZ = 24_000  # of the file written: 192 samples a step, and no worse than the voice
_AFTER_S = 2.0  # of silence after the recording, in which its last turn ends
_MAX_AFTER_S = 120.0  # for the last reply to be played


class LiveRoom:
    """Runs from `start` to `stop`; `fault` says why it ended by itself."""

    def __init__(self, card: Soundcard, dialogue: Dialogue, player: Player) -> None:
        self.card = card
        self.fault: UnpausedError | None = None
        self._dialogue, self._player = dialogue, player
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="room", daemon=True)
        card.moved = player.attach

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the devices are let go of, which a device that hangs cannot prevent."""
        self._stopped.set()
        self._thread.join(3.0)

    def call(self, work: Callable[[], None]) -> None:
        """Have the loop do `work` next: what belongs to the microphone's thread."""
        self._calls.put(work)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            while not self._stopped.wait(_POLL_S):
                self._step()
        except UnpausedError as error:
            self.fault = error
        except Exception:
            logger.exception("listening failed")
            self.fault = UnpausedError("listening failed inside; the log has the details")
        finally:
            self._dialogue.close()
            self.card.close()
            sys.setswitchinterval(before)

    def _step(self) -> None:
        while not self._calls.empty():
            self._calls.get()()
        for block in self.card.read():
            self._dialogue.push(block)
        self._player.step()


class BusyRunner:
    """Runs work on threads and knows whether any is under way."""

    def __init__(self) -> None:
        self._runner: Runner = ThreadRunner()
        self._lock = threading.Lock()
        self._count = 0

    @property
    def busy(self) -> bool:
        return self._count > 0

    def run(self, work: Callable[[], Iterable[T]], deliver: Callable[[T], None]) -> None:
        def counted() -> Iterable[T]:
            try:
                yield from work()
            finally:
                self._change(-1)

        self._change(1)
        self._runner.run(counted, deliver)

    def _change(self, by: int) -> None:
        with self._lock:
            self._count += by


class SkippingClock:
    """Seconds, as `time.perf_counter`, and those that nobody had to wait for."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds

    def wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - self()))


class FileRoom:
    """A recording is heard as a microphone's, and what is said becomes another.

    `fast` skips the time in which nothing is computed; what is computed takes its time, so that
    every latency is the one that real time would have shown.
    """

    def __init__(self, samples: np.ndarray, fast: bool) -> None:
        self.clock, self.runner = SkippingClock(), BusyRunner()
        self.outlet = Outlet(FILE_RATE_HZ, self.clock)
        self.level = 0.0
        self._samples, self._fast = samples, fast
        self._said: list[np.ndarray] = []
        self._rest: np.ndarray = np.zeros(0, np.float32)

    def run(self, dialogue: Dialogue, player: Player, stopped: threading.Event) -> None:
        """Until the recording is over and answered, or `stopped` is set."""
        due = self.clock()
        silence = np.zeros(STEP, np.float32)
        for at in range(0, len(self._samples), STEP):
            if stopped.is_set():
                return
            step = self._samples[at : at + STEP]
            due = self._step(dialogue, player, np.pad(step, (0, STEP - len(step))), due)
        end = due
        while not stopped.is_set() and due < end + _MAX_AFTER_S:
            due = self._step(dialogue, player, silence, due)
            if due > end + _AFTER_S and not dialogue.active and not self.runner.busy:
                return

    def speech(self) -> np.ndarray:
        """What was said, on the recording's time line: int16 [n] at `FILE_RATE_HZ`."""
        return to_pcm16(np.concatenate([np.zeros(0, np.float32), *self._said]))

    def _step(self, dialogue: Dialogue, player: Player, sound: np.ndarray, due: float) -> float:
        """8 ms; returns when they are over."""
        seconds = STEP / STT_RATE_HZ
        if self._fast and not self.runner.busy:
            self.clock.skip(max(0.0, due + seconds - self.clock()))
        else:
            self.clock.wait_until(due + seconds)
        player.step()
        out = np.zeros((STEP * FILE_RATE_HZ // STT_RATE_HZ, 1), np.float32)
        self.outlet.fill(out, due + seconds)
        self._said.append(out[:, 0])
        self.outlet.played()  # nobody listens for its echo
        self._rest = np.concatenate([self._rest, sound])
        if len(self._rest) >= BLOCK:
            self.level = float(np.sqrt(np.mean(np.square(self._rest))))
            dialogue.push(self._rest[:BLOCK])
            self._rest = self._rest[BLOCK:]
        return due + seconds
