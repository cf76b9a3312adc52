"""Choosing a device and agreeing with it, against a stand-in for PortAudio."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

from audio import portaudio
from audio.devices import choose, list_devices, narrowness, negotiate, table
from audio.portaudio import Kind
from engine.errors import UnpausedError
from tests.audio.sound_system import HOST, UNAVAILABLE, FakeDevice, PortAudioError, install

Patch = pytest.MonkeyPatch


def refused(kind: Kind, wanted: str | None = None) -> str:
    with pytest.raises(UnpausedError) as caught:
        negotiate(choose(kind, wanted), kind)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_devices_are_listed_with_what_they_are(monkeypatch: Patch) -> None:
    install(monkeypatch, FakeDevice("HDMI  0", outputs=8), FakeDevice("USB", inputs=1, outputs=2))
    hdmi, usb = list_devices()
    assert (hdmi.name, hdmi.host, hdmi.outputs) == ("HDMI 0", "ALSA", 8)
    assert table([hdmi, usb]) == [
        "  0  HDMI 0 (ALSA): loudspeaker*, 48,000 Hz",
        "  1  USB (ALSA): microphone* and loudspeaker, 48,000 Hz",
        "* is the default",
    ]
    assert table([]) == ["No sound devices."]


def test_a_device_is_chosen_by_number_name_or_part_of_it(monkeypatch: Patch) -> None:
    install(
        monkeypatch,
        FakeDevice("Built-in", inputs=2, outputs=2),
        FakeDevice("USB Headset", inputs=1, outputs=2),
        FakeDevice("USB Headset 2", inputs=1),
        FakeDevice("HDMI", outputs=2),
    )
    assert choose("input").name == "Built-in"
    assert choose("input", "2").name == "USB Headset 2"
    assert choose("input", "usb headset").name == "USB Headset"  # exact beats part
    assert choose("output", "headset").name == "USB Headset"  # the other has no output
    assert choose("output", "hdmi").name == "HDMI"


def test_without_a_default_the_first_that_can_is_taken(monkeypatch: Patch) -> None:
    system = install(monkeypatch, FakeDevice("HDMI", outputs=2), FakeDevice("USB", inputs=1))
    system.default.device = [-1, -1]
    assert choose("input").name == "USB"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("guitar", ("'guitar'", "0 USB A", "1 USB B")),
        ("7", ("'7'", "0 USB A")),
        ("usb", ("several", "0 USB A; 1 USB B")),
        ("", ("''",)),
    ],
)
def test_a_name_that_fits_none_or_several(
    wanted: str, words: tuple[str, ...], monkeypatch: Patch
) -> None:
    install(monkeypatch, FakeDevice("USB A", inputs=1), FakeDevice("USB B", inputs=1))
    message = refused("input", wanted)
    assert all(word in message for word in words)


def test_the_own_rate_and_mono_are_preferred(monkeypatch: Patch) -> None:
    install(monkeypatch, FakeDevice("USB", inputs=2, rate_hz=44_100))
    agreed = negotiate(choose("input"), "input")
    assert (agreed.rate_hz, agreed.channels) == (44_100, 1)


def test_other_rates_and_channels_are_tried(monkeypatch: Patch) -> None:
    install(monkeypatch, FakeDevice("Array", inputs=6, rates_hz=(32_000, 16_000), channels=(6,)))
    agreed = negotiate(choose("input"), "input")
    assert (agreed.rate_hz, agreed.channels) == (32_000, 6)


# The bad inputs


def test_no_portaudio_is_said(monkeypatch: Patch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "sounddevice":
            raise OSError("PortAudio library not found")
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    message = refused("input")
    assert "PortAudio" in message and "install" in message


def test_no_sounddevice(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert "pip install" in refused("input")


def test_no_microphone_is_said(monkeypatch: Patch) -> None:
    install(monkeypatch, FakeDevice("HDMI", outputs=2))
    assert "no microphone was found" in refused("input")


def test_no_speaker_is_said(monkeypatch: Patch) -> None:
    install(monkeypatch, FakeDevice("USB", inputs=2))
    assert "no loudspeaker was found" in refused("output")


@pytest.mark.parametrize(
    "refusal",
    [
        PortAudioError("Device unavailable", UNAVAILABLE),
        PortAudioError("Unanticipated host error", HOST, (0, -16, "Device or resource busy")),
    ],
)
def test_device_busy(refusal: PortAudioError, monkeypatch: Patch) -> None:
    install(monkeypatch, FakeDevice("USB", inputs=1, refusal=refusal))
    message = refused("input")
    assert "USB is in use by another program" in message and "--microphone" in message


def test_an_8_khz_device_works_and_is_said(monkeypatch: Patch) -> None:
    install(monkeypatch, FakeDevice("Phone", inputs=1, outputs=1, rates_hz=(8000,)))
    device = choose("input")
    agreed = negotiate(device, "input")
    assert agreed.rate_hz == 8000
    assert "8,000 Hz" in narrowness(device, agreed, "input")
    assert "muffled" in narrowness(device, agreed, "output")


def test_sample_rate_refused(monkeypatch: Patch) -> None:
    install(monkeypatch, FakeDevice("Odd", outputs=2, rates_hz=(7,)))
    message = refused("output")
    assert "Odd refuses every sample rate" in message and "--loudspeaker" in message


@pytest.mark.parametrize("host", [(0, -13, ""), (0, 0, "Permission denied")])
def test_permission_refused(host: tuple[int, int, str], monkeypatch: Patch) -> None:
    refusal = PortAudioError("Unanticipated host error", HOST, host)
    install(monkeypatch, FakeDevice("USB", inputs=1, refusal=refusal))
    message = refused("input")
    assert "does not let you use" in message and "group audio" in message


def test_any_other_fault_keeps_its_words(monkeypatch: Patch) -> None:
    refusal = PortAudioError("Unanticipated host error", HOST, (0, -5, "Input/output\nerror"))
    install(monkeypatch, FakeDevice("USB", inputs=1, refusal=refusal))
    assert "(Input/output error)" in refused("input")


def test_devices_that_may_not_be_opened_are_not_listed_and_that_is_said(
    monkeypatch: Patch, tmp_path: Any
) -> None:
    install(monkeypatch)
    (tmp_path / "pcmC0D0c").write_bytes(b"")
    monkeypatch.setattr(portaudio, "SOUND_NODES", tmp_path)
    assert "permission" not in refused("input")
    monkeypatch.setattr(portaudio.os, "access", lambda *_: False)
    assert "permission refused" in refused("input")


def test_a_list_that_cannot_be_had(monkeypatch: Patch) -> None:
    system = install(monkeypatch)

    def fail() -> None:
        raise PortAudioError("PortAudio not initialized", -10000)

    monkeypatch.setattr(system, "query_devices", fail)
    assert "not initialized" in refused("input")
