"""A stand-in for PortAudio, as `sounddevice` shows it: devices, their faults, and streams that a
test drives by hand or that run in real time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

UNAVAILABLE, BAD_CHANNELS, BAD_RATE, HOST = -9985, -9998, -9997, -9999


class PortAudioError(Exception):
    """(words, PortAudio's code, (host, its code, its words)), as the real one."""


@dataclass
class FakeDevice:
    name: str
    inputs: int = 0
    outputs: int = 0
    rate_hz: int = 48_000
    rates_hz: tuple[int, ...] | None = None  # None takes any
    channels: tuple[int, ...] | None = None
    refusal: PortAudioError | None = None  # what opening it answers


class FakeStream:
    """`feed` and `drain` call back as PortAudio would; `pull_out` is a device unplugged."""

    latency = 0.08

    def __init__(self, system: FakeSystem, kind: str, **options: Any) -> None:
        device = system.devices[options["device"]]
        system.check(kind, device, options["channels"], options["samplerate"])
        self.device, self.kind, self.channels = device, kind, options["channels"]
        self.rate_hz, self.block = options["samplerate"], options["blocksize"]
        self._callback: Callable[..., None] = options["callback"]
        self._active, self.closed = False, False
        system.streams.append(self)

    @property
    def active(self) -> bool:
        assert not self.closed, "PortAudio would look into freed memory"
        return self._active

    def start(self) -> None:
        self._active = True

    def close(self, ignore_errors: bool = True) -> None:
        assert not self.closed, "PortAudio would look into freed memory"
        self._active, self.closed = False, True

    def pull_out(self) -> None:
        self._active = False

    def feed(self, frames: np.ndarray, overflow: bool = False, age_s: float = 0.02) -> None:
        """Record float32 [n] or [n, channels] in blocks."""
        if frames.ndim == 1:
            frames = np.repeat(frames[:, None], self.channels, axis=1)
        for at in range(0, len(frames), self.block):
            block = frames[at : at + self.block].astype(np.float32)
            now = time.perf_counter()
            times = SimpleNamespace(currentTime=now, inputBufferAdcTime=now - age_s)
            self._callback(block, len(block), times, SimpleNamespace(input_overflow=overflow))
            block[:] = np.nan  # PortAudio's memory is only lent

    def drain(self, blocks: int, underflow: bool = False, ahead_s: float = 0.08) -> np.ndarray:
        """Play: float32 [blocks * n, channels]."""
        parts = []
        for _ in range(blocks):
            out = np.full((self.block, self.channels), np.nan, np.float32)
            now = time.perf_counter()
            times = SimpleNamespace(currentTime=now, outputBufferDacTime=now + ahead_s)
            self._callback(out, self.block, times, SimpleNamespace(output_underflow=underflow))
            parts.append(out)
        return np.concatenate(parts)


@dataclass
class FakeSystem:
    """Stands for the module. `default` is (input, output), -1 for none."""

    devices: list[FakeDevice]
    default: Any = None
    streams: list[FakeStream] = field(default_factory=list)
    restarts: int = 0
    PortAudioError: type[Exception] = PortAudioError

    def __post_init__(self) -> None:
        if self.default is None:
            first = [
                next((i for i, d in enumerate(self.devices) if getattr(d, kind)), -1)
                for kind in ("inputs", "outputs")
            ]
            self.default = SimpleNamespace(device=first)

    def query_devices(self) -> list[dict[str, Any]]:
        return [
            {
                "name": device.name,
                "hostapi": 0,
                "max_input_channels": device.inputs,
                "max_output_channels": device.outputs,
                "default_samplerate": float(device.rate_hz),
            }
            for device in self.devices
        ]

    def query_hostapis(self) -> list[dict[str, Any]]:
        return [{"name": "ALSA"}]

    def check(self, kind: str, device: FakeDevice, channels: int, rate_hz: float) -> None:
        if device.refusal is not None:
            raise device.refusal
        most = device.inputs if kind == "input" else device.outputs
        if channels > most or (device.channels and channels not in device.channels):
            raise PortAudioError("Invalid number of channels", BAD_CHANNELS)
        if device.rates_hz is not None and rate_hz not in device.rates_hz:
            raise PortAudioError("Invalid sample rate", BAD_RATE)

    def check_input_settings(
        self, device: int, channels: int, dtype: str, samplerate: float
    ) -> None:
        self.check("input", self.devices[device], channels, samplerate)

    def check_output_settings(
        self, device: int, channels: int, dtype: str, samplerate: float
    ) -> None:
        self.check("output", self.devices[device], channels, samplerate)

    def InputStream(self, **options: Any) -> FakeStream:
        return FakeStream(self, "input", **options)

    def OutputStream(self, **options: Any) -> FakeStream:
        return FakeStream(self, "output", **options)

    def open_streams(self, kind: str) -> list[FakeStream]:
        return [s for s in self.streams if s.kind == kind and not s.closed]

    def _terminate(self) -> None:
        assert not any(s for s in self.streams if not s.closed), "a stream is still open"

    def _initialize(self) -> None:
        self.restarts += 1


class RealTime:
    """Drives the system's streams as hardware would: silence in, whatever comes out collected.

    `say` queues what the microphone hears. Played samples are kept in `heard`.
    """

    def __init__(self, system: FakeSystem) -> None:
        self._system = system
        self._said: list[np.ndarray] = []
        self.heard: list[np.ndarray] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> RealTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def say(self, samples: np.ndarray) -> None:
        """float32 [n] at the microphone's rate."""
        self._said.append(samples)

    def _run(self) -> None:
        due = time.perf_counter()
        while not self._stop.is_set():
            for stream in self._system.streams:
                if stream.closed:
                    continue
                if stream.active and stream.kind == "input":
                    stream.feed(self._next(stream.block))
                elif stream.active:
                    self.heard.append(stream.drain(1)[:, 0])
            due += 0.02
            time.sleep(max(0.0, due - time.perf_counter()))

    def _next(self, n: int) -> np.ndarray:
        block: np.ndarray = np.zeros(n, np.float32)
        if self._said:
            part, rest = self._said[0][:n], self._said[0][n:]
            block[: len(part)] = part
            self._said[:1] = [rest] if len(rest) else []
        return block


def install(monkeypatch: pytest.MonkeyPatch, *devices: FakeDevice) -> FakeSystem:
    """Make `import sounddevice` give a system with `devices`."""
    system = FakeSystem(list(devices))
    monkeypatch.setitem(sys.modules, "sounddevice", system)
    return system
