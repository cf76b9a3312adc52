"""The microphones and loudspeakers of this machine: which there are, and what they can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from audio.portaudio import (
    NAMES,
    OPTIONS,
    Kind,
    access_hint,
    fault,
    portaudio,
    refused_settings,
    words,
)
from engine.errors import UnpausedError

# Tried after the device's own rate, best first: a system that converts rates for us does it worse
# than soxr, so the device's own rate is taken wherever it can be had.
RATES_HZ = (48_000, 44_100, 32_000, 96_000, 24_000, 22_050, 16_000, 11_025, 8_000)
BLOCK_MS = 20  # that streams hand over at a time
NARROW_HZ = 16_000  # below it consonants are missing


@dataclass(frozen=True)
class Device:
    """One device. `rate_hz` is its own; `inputs` and `outputs` are channels."""

    index: int
    name: str
    host: str
    inputs: int
    outputs: int
    rate_hz: int
    default: tuple[Kind, ...] = ()

    def channels(self, kind: Kind) -> int:
        return self.inputs if kind == "input" else self.outputs


@dataclass(frozen=True)
class Format:
    """What a device agreed to."""

    rate_hz: int
    channels: int


@contextmanager
def faults_told(kind: Kind, device: Device) -> Iterator[None]:
    """Turn PortAudio's errors about `device` into `UnpausedError`."""
    sounddevice = portaudio()
    try:
        yield
    except sounddevice.PortAudioError as error:
        raise fault(error, kind, device.name) from error


def open_stream(
    kind: Kind, device: Device, format: Format, latency_s: float, callback: Callable[..., None]
) -> Any:
    """A sounddevice stream of float32 blocks of BLOCK_MS, not yet started."""
    sounddevice = portaudio()
    make = sounddevice.InputStream if kind == "input" else sounddevice.OutputStream
    return make(
        device=device.index,
        samplerate=format.rate_hz,
        channels=format.channels,
        dtype="float32",
        blocksize=format.rate_hz * BLOCK_MS // 1000,
        latency=latency_s,
        callback=callback,
    )


def list_devices() -> list[Device]:
    """All devices, numbered as PortAudio does."""
    sounddevice = portaudio()
    try:
        found = list(sounddevice.query_devices())
        hosts = [host["name"] for host in sounddevice.query_hostapis()]
        defaults = [_index(number) for number in sounddevice.default.device]
    except sounddevice.PortAudioError as error:
        raise UnpausedError(f"the sound devices cannot be listed: {words(error)}") from error
    kinds: tuple[Kind, Kind] = ("input", "output")
    return [
        Device(
            index=number,
            name=" ".join(info["name"].split()),
            host=hosts[info["hostapi"]],
            inputs=info["max_input_channels"],
            outputs=info["max_output_channels"],
            rate_hz=round(info["default_samplerate"]),
            default=tuple(k for k, at in zip(kinds, defaults, strict=True) if at == number),
        )
        for number, info in enumerate(found)
    ]


def table(devices: list[Device]) -> list[str]:
    """One line for each device: number, name, what it is and its rate; * marks defaults."""
    if not devices:
        return [f"No sound devices.{access_hint()}"]
    lines = []
    for device in devices:
        roles = [
            f"{NAMES[kind]}{'*' if kind in device.default else ''}"
            for kind in NAMES
            if device.channels(kind)
        ]
        what = " and ".join(roles) or "neither microphone nor loudspeaker"
        lines.append(
            f"{device.index:>3}  {device.name} ({device.host}): {what}, {device.rate_hz:,} Hz"
        )
    return [*lines, "* is the default"]


def choose(kind: Kind, wanted: str | None = None) -> Device:
    """The device numbered or named `wanted` (any part of its name), or the default one.

    Raises `UnpausedError` when there is none, or when a name fits several.
    """
    able = [device for device in list_devices() if device.channels(kind) > 0]
    if not able:
        raise UnpausedError(
            f"no {NAMES[kind]} was found: connect one, and see `app.py listen --list-devices`"
            f"{access_hint()}"
        )
    if wanted is None:
        return next((device for device in able if kind in device.default), able[0])
    fitting = list(_fitting(able, wanted.strip()))
    if len(fitting) == 1:
        return fitting[0]
    known = "; ".join(f"{device.index} {device.name}" for device in fitting or able)
    if not fitting:
        raise UnpausedError(
            f"no {NAMES[kind]} is called or numbered {wanted!r}; there are: {known}"
        )
    raise UnpausedError(f"{wanted!r} fits several: name the number of one of {known}")


def negotiate(device: Device, kind: Kind) -> Format:
    """A rate and a channel count that `device` takes: its own rate and mono if it can.

    Raises `UnpausedError` when it takes none, is busy, or is not ours to use.
    """
    sounddevice = portaudio()
    check = getattr(sounddevice, f"check_{kind}_settings")
    most = device.channels(kind)
    for rate_hz in dict.fromkeys((device.rate_hz, *RATES_HZ)):
        for channels in dict.fromkeys((1, min(2, most), most)):
            try:
                check(device.index, channels, "float32", samplerate=rate_hz)
            except sounddevice.PortAudioError as error:
                if not refused_settings(error):
                    raise fault(error, kind, device.name) from error
            else:
                return Format(rate_hz, channels)
    raise UnpausedError(
        f"the {NAMES[kind]} {device.name} refuses every sample rate from {min(RATES_HZ):,} to "
        f"{max(RATES_HZ):,} Hz: choose another with {OPTIONS[kind]}"
    )


def narrowness(device: Device, format: Format, kind: Kind) -> str:
    """A line about a device of telephone quality, "" about any other."""
    if format.rate_hz >= NARROW_HZ:
        return ""
    effect = "words may be misheard" if kind == "input" else "the voice will sound muffled"
    return (
        f"The {NAMES[kind]} {device.name} has only {format.rate_hz:,} Hz, as a telephone: {effect}."
    )


def _fitting(devices: list[Device], wanted: str) -> Iterator[Device]:
    if wanted.isdecimal():
        yield from (device for device in devices if device.index == int(wanted))
        return
    exact = [device for device in devices if device.name.lower() == wanted.lower()]
    part = [d for d in devices if wanted.lower() in f"{d.name}, {d.host}".lower()]
    yield from exact[:1] or (part if wanted else [])


def _index(number: object) -> int:
    return number if isinstance(number, int) else -1
