"""The microphone and the loudspeaker of this machine as one: echo removed, lost devices awaited.

Microphone -> to 16 kHz -> echo -> blocks for a dialogue
Speaker  <- Outlet                 (what it played goes to the echo as well)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from audio.devices import Device, Format, choose, narrowness, negotiate
from audio.echo import Echo
from audio.frames import STT_RATE_HZ, Resampler
from audio.microphone import Microphone
from audio.outlet import Outlet
from audio.portaudio import NAMES, rescan
from audio.speaker import Speaker
from engine.errors import UnpausedError

BLOCK = 512  # samples at 16 kHz: what the speech detector looks at
_RETRY_S = 1.0  # between two looks for a device that has gone
_PATIENCE_S = 300.0  # until it is given up
_DEAD_S = 3.0  # of nothing but zeros: a microphone that is muted or not allowed


@dataclass(frozen=True)
class Choice:
    """Which devices: a number or a part of a name each, None for the default."""

    microphone: str | None = None
    loudspeaker: str | None = None

    def agree(self) -> tuple[tuple[Device, Format], tuple[Device, Format]]:
        """Microphone and loudspeaker, each with what it agreed to. Raises `UnpausedError`."""
        microphone = choose("input", self.microphone)
        loudspeaker = choose("output", self.loudspeaker)
        return (microphone, negotiate(microphone, "input")), (
            loudspeaker,
            negotiate(loudspeaker, "output"),
        )


class Soundcard:
    """Open from when it is made until `close`. `read` belongs to one thread.

    `tell` gets what the person should know: a device that is gone, or back, or mute.
    `moved` gets the new outlet when the loudspeaker was opened anew.
    """

    def __init__(
        self,
        choice: Choice,
        echo: Echo,
        tell: Callable[[str], None],
        moved: Callable[[Outlet], None] = lambda outlet: None,
    ) -> None:
        self.echo, self.level = echo, 0.0  # of the latest sound, 0 to 1
        self.tell, self.moved = tell, moved
        self._choice = choice
        self._before = (0.0, 0.0, 0.0)  # `_counts` of the devices before these
        self._rest: np.ndarray = np.zeros(0, np.float32)
        self._gone_s: float | None = None  # since when there is no device
        self._next_s = 0.0
        self._zeros: int | None = 0  # of the first sounds, until one is none
        self._open()

    def _open(self) -> None:
        (microphone, heard), (loudspeaker, spoken) = self._choice.agree()
        self.microphone = Microphone(microphone, heard)
        try:
            self.speaker = Speaker(loudspeaker, spoken)
        except UnpausedError:
            self.microphone.close()
            raise
        self._near = Resampler(heard.rate_hz, STT_RATE_HZ)
        self._far = Resampler(spoken.rate_hz, STT_RATE_HZ)
        for line in (
            narrowness(microphone, heard, "input"),
            narrowness(loudspeaker, spoken, "output"),
        ):
            if line:
                self.tell(line)

    @property
    def outlet(self) -> Outlet:
        """Where to write what is to be played."""
        return self.speaker.outlet

    @property
    def words(self) -> str:
        """The devices, for the person."""
        return f"{self.microphone.device.name} → {self.speaker.device.name}, {self.echo.words}"

    @property
    def missed_ms(self) -> float:
        """Sound of the microphone that was lost, of which there should be none."""
        return self._before[0] + self._counts()[0]

    @property
    def blocks(self) -> int:
        """Blocks that the microphone has delivered."""
        return round(self._before[1] + self._counts()[1])

    @property
    def underflows(self) -> int:
        """Blocks that the loudspeaker was late with."""
        return round(self._before[2] + self._counts()[2])

    def begin(self) -> None:
        """Forget what was heard so far, and count from here."""
        self.microphone.read()
        self.outlet.played()
        missed, blocks, late = self._counts()
        self._before = (-missed, -blocks, -late)

    def read(self) -> list[np.ndarray]:
        """The blocks that have come, float32 [512] at 16 kHz each; none while a device is gone.

        Raises `UnpausedError` when it has been gone for too long.
        """
        if self._gone_s is None:
            self._look_for_loss()
        else:
            self._look_for_return()
        return [] if self._gone_s is not None else self._blocks_of(self._listen())

    def close(self) -> None:
        """Let go of both. Idempotent."""
        self.microphone.close()
        self.speaker.close()

    def _counts(self) -> tuple[float, float, float]:
        """(missed ms, blocks, underflows) of the devices that are open."""
        if self._gone_s is not None:
            return 0.0, 0.0, 0.0
        microphone = self.microphone
        missed_ms = 1000 * microphone.missed / microphone.rate_hz
        return missed_ms, microphone.blocks, self.speaker.underflows

    # What was heard

    def _listen(self) -> np.ndarray:
        played, audible_s = self.outlet.played()
        recorded, recorded_s = self.microphone.read()
        self._measure(recorded)
        delay_ms = 1000 * (audible_s - recorded_s)
        far = self._far.push(np.ascontiguousarray(played))
        near = self._near.push(np.ascontiguousarray(recorded))
        return self.echo.process(near, far, delay_ms)

    def _measure(self, recorded: np.ndarray) -> None:
        if not len(recorded):
            return
        self.level = float(np.sqrt(np.mean(np.square(recorded))))
        if self._zeros is None or np.any(recorded):
            self._zeros = None  # it works
            return
        self._zeros += len(recorded)
        if self._zeros >= _DEAD_S * self.microphone.rate_hz:
            self._zeros = None  # said once
            name = self.microphone.device.name
            self.tell(
                f"{name} delivers nothing but zeros: it is muted, or this program may not listen"
            )

    def _blocks_of(self, samples: np.ndarray) -> list[np.ndarray]:
        samples = np.concatenate([self._rest, samples])
        whole = len(samples) // BLOCK * BLOCK
        self._rest = samples[whole:]
        return list(samples[:whole].reshape(-1, BLOCK))

    # Devices that go and come

    def _look_for_loss(self) -> None:
        pairs = ((NAMES["input"], self.microphone), (NAMES["output"], self.speaker))
        lost = [name for name, stream in pairs if stream.stalled]
        if not lost:
            return
        self.tell(f"the {' and the '.join(lost)} stopped; waiting for a device")
        self.close()
        missed, blocks, late = (b + c for b, c in zip(self._before, self._counts(), strict=True))
        self._before = (missed, blocks, late)
        self.level, self._rest = 0.0, self._rest[:0]
        self._gone_s = self._next_s = time.monotonic()

    def _look_for_return(self) -> None:
        now = time.monotonic()
        assert self._gone_s is not None
        if now < self._next_s:
            return
        self._next_s = now + _RETRY_S
        rescan()
        try:
            self._open()
        except UnpausedError:
            if now - self._gone_s > _PATIENCE_S:
                raise
            return
        self._gone_s, self._zeros = None, 0
        self.tell(f"listening again: {self.words}")
        self.moved(self.outlet)
