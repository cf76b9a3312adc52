"""The whole of `listen` on virtual sound devices, from a real microphone stream to a real
loudspeaker stream, where this machine can have them."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import app
from audio.tts import Synthesizer
from benchmarks.virtual_devices import DEVICE, VirtualDevices, missing

ROOT = Path(app.__file__).resolve().parent
WAIT_S = 120.0  # for what takes seconds
RECORDED_HZ, LOUD = 44_100, 650  # of parec's stereo PCM16

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"virtual sound devices: {missing()}"),
    pytest.mark.slow,
]
Save = Callable[[str], Path]


@pytest.fixture
def devices() -> Iterator[VirtualDevices]:
    with VirtualDevices() as devices:
        yield devices


@pytest.fixture(scope="module")
def spoken(voice_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Save:
    """A WAV of a text."""
    voice, folder = Synthesizer(voice_path), tmp_path_factory.mktemp("spoken")

    def save(text: str) -> Path:
        path = folder / f"{abs(hash(text))}.wav"
        pause = np.zeros(voice.rate_hz // 3, np.int16)
        soundfile.write(path, np.concatenate([pause, voice.synthesize(text), pause]), voice.rate_hz)
        return path

    return save


class Listening:
    """`app.py listen` on the devices, without a terminal and with standard input closed."""

    def __init__(self, devices: VirtualDevices, *arguments: str) -> None:
        command = [sys.executable, str(ROOT / "app.py"), "listen", "--json",
                   "--microphone", DEVICE, "--loudspeaker", DEVICE, *arguments]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" <&-', "bash", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**devices.environment, "NO_COLOR": "1"},
        )
        self.notices: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.put(line.rstrip())

    def until(self, words: str) -> str:
        """The next notice with `words` in it."""
        end = time.monotonic() + WAIT_S
        while True:
            line = self._lines.get(timeout=max(0.01, end - time.monotonic()))
            self.notices.append(line)
            if words in line:
                return line

    def end(self) -> dict[str, Any]:
        """Ctrl+C, and the figures it leaves with."""
        self._process.send_signal(signal.SIGINT)
        out, _ = self._process.communicate(timeout=WAIT_S)
        assert self._process.returncode == 0, self.notices
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result


def wait_for_sound(recording: Path, seconds: float, then_quiet_s: float = 0.0) -> None:
    """Until so much of what is being recorded was loud, and then none of its last seconds.

    Its time is the recording's own, so that a busy machine is waited for.
    """
    enough, quiet = seconds * RECORDED_HZ, int(then_quiet_s * RECORDED_HZ)
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        data = recording.read_bytes()[44:] if recording.exists() else b""  # past the header
        loud = np.abs(np.frombuffer(data[: len(data) // 4 * 4], "<i2")[::2].astype(int)) > LOUD
        if np.sum(loud) > enough and not np.any(loud[max(0, len(loud) - quiet) :]):
            return
        time.sleep(0.1)
    raise AssertionError("nothing was said in time")


@pytest.fixture
def listening(
    devices: VirtualDevices, smollm2_path: Path, whisper_dir: Path
) -> Iterator[Callable[..., Listening]]:
    begun: list[Listening] = []

    def begin(*arguments: str) -> Listening:
        begun.append(Listening(devices, *arguments))
        begun[-1].until("Listening: pulse → pulse")
        return begun[-1]

    yield begin
    for one in begun:
        one._process.kill()
        one._process.wait()


def test_a_question_into_the_microphone_is_answered_aloud(
    devices: VirtualDevices, listening: Callable[..., Listening], spoken: Save, tmp_path: Path
) -> None:
    assistant = listening("--headset")
    heard = tmp_path / "heard.wav"
    with devices.recorded(heard):
        devices.say(spoken("What is the capital of France?"))
        wait_for_sound(heard, 0.3, then_quiet_s=1.5)
    result = assistant.end()
    (turn,) = result["turns"]
    assert "capital of france" in turn["transcript"].lower()
    assert "Paris" in turn["heard"] and turn["finish"] == "complete"
    assert turn["stages"][-1]["name"] == "playback"
    assert turn["total_ms"] == pytest.approx(sum(s["ms"] for s in turn["stages"]), abs=5)
    assert result["blocks"] > 200
    speech, rate_hz = soundfile.read(heard)
    assert np.sum(np.abs(speech[:, 0]) > 0.02) > 0.3 * rate_hz


def test_its_own_echo_is_no_turn(
    devices: VirtualDevices, listening: Callable[..., Listening], spoken: Save, tmp_path: Path
) -> None:
    """With WebRTC's canceller, or half-duplex without it."""
    devices.echo()
    assistant = listening()
    with devices.recorded(tmp_path / "heard.wav"):
        devices.say(spoken("Why is the sky blue?"))
        wait_for_sound(tmp_path / "heard.wav", 3.0)
    (turn,) = assistant.end()["turns"]
    assert "sky blue" in turn["transcript"].lower()
    assert turn["finish"] in ("complete", "stopped")  # by Ctrl+C, not by itself
    assert len(turn["heard"].split()) > 8


def test_devices_that_go_and_come_back(
    devices: VirtualDevices, listening: Callable[..., Listening], spoken: Save, tmp_path: Path
) -> None:
    assistant = listening("--headset")
    devices.unplug()
    assert "stopped; waiting for a device" in assistant.until("stopped")
    time.sleep(2)
    devices.plug()
    assistant.until("Listening again: pulse → pulse")
    with devices.recorded(tmp_path / "heard.wav"):
        time.sleep(2.5)  # PulseAudio's streams take a moment to begin
        devices.say(spoken("What is the capital of France?"))
        wait_for_sound(tmp_path / "heard.wav", 0.3)
    assert "france" in assistant.end()["turns"][-1]["transcript"].lower()
    assert not any("pa_linux_alsa" in notice for notice in assistant.notices)
