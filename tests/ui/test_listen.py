"""`app.py listen` as a person or a script runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

import app
from audio.tts import Synthesizer
from tests.audio.sound_system import (
    HOST,
    UNAVAILABLE,
    FakeDevice,
    PortAudioError,
    install,
)
from ui import listen

ROOT = Path(app.__file__).resolve().parent
LIMIT_S = 120
Capture = pytest.CaptureFixture[str]
QUESTION = "What is the capital of France?"
GOOD = FakeDevice("Good", inputs=1, outputs=2)


def refused(capsys: Capture, *arguments: str | Path) -> str:
    """The one line of a command that must leave with 2 and print nothing else."""
    assert app.main(["listen", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("unpaused: ")
    return line


# No device to be had: one line each, and the way to text mode


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ([FakeDevice("HDMI", outputs=2)], "no microphone was found"),
        ([FakeDevice("USB", inputs=1)], "no loudspeaker was found"),
        (
            [FakeDevice("USB", inputs=1, refusal=PortAudioError("busy", UNAVAILABLE)), GOOD],
            "microphone USB is in use",
        ),
        ([FakeDevice("USB", inputs=1, outputs=2, rates_hz=(5,))], "refuses every sample rate"),
        (
            [FakeDevice("USB", inputs=1, refusal=PortAudioError("", HOST, (0, -13, ""))), GOOD],
            "does not let you use the microphone USB",
        ),
    ],
)
def test_a_device_that_cannot_be_had_is_one_line_that_offers_text(
    devices: list[FakeDevice], words: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    install(monkeypatch, *devices)
    line = refused(capsys)
    assert words in line and "app.py listen --text" in line


def test_no_portaudio_is_one_line_that_offers_text(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert "listen --text" in refused(capsys)


def test_a_name_that_fits_no_device(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    install(monkeypatch, GOOD)
    assert "'guitar'" in refused(capsys, "--microphone", "guitar")


@pytest.mark.parametrize("kind", ["--microphone", "--loudspeaker"])
def test_an_8_khz_device_is_no_fault(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from audio.soundcard import Choice

    install(monkeypatch, FakeDevice("Phone", inputs=1, outputs=1, rates_hz=(8000,)))
    (_, heard), (_, spoken) = Choice().agree()
    assert heard.rate_hz == spoken.rate_hz == 8000


def test_in_a_terminal_text_mode_begins_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    install(monkeypatch)
    begun: list[bool] = []
    monkeypatch.setattr(listen, "_interactive", lambda: True)

    def typed(options: object) -> int:
        begun.append(True)
        return 0

    monkeypatch.setattr(listen, "_typed", typed)
    assert app.main(["listen"]) == 0
    assert begun and "no microphone was found" in capsys.readouterr().err


# Options


def test_devices_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    install(monkeypatch, GOOD)
    assert app.main(["listen", "--list-devices"]) == 0
    assert "0  Good (ALSA): microphone* and loudspeaker*" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fast",), "--in"),
        (("--out", "x.wav"), "--in"),
        (("--text", "--in", "x.wav"), "exclude"),
        (("--in", "x.wav", "--microphone", "USB"), "--microphone is about a device"),
        (("--text", "--loudspeaker", "0"), "--text uses none"),
        (("--in", "x.wav", "--headset"), "--headset"),
        (("--in", "/no/such.wav"), "/no/such.wav"),
        (("--engine", "warp", "--text"), "warp"),
        (("--text", "--context", "0"), "context"),
        (("--text", "--model", "nobody"), "nobody"),
        (("--text", "--max-tokens", "0"), "max_tokens"),
    ],
)
def test_a_bad_option_is_one_line(arguments: tuple[str, ...], words: str, capsys: Capture) -> None:
    assert words in refused(capsys, *arguments)


# With the real models


def run(
    *arguments: str | Path, stdin: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "app.py", "listen", *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **environment},
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def recording(voice_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two questions, with time for an answer after each."""
    voice = Synthesizer(voice_path)
    parts = [np.zeros(voice.rate_hz, np.int16)]
    for text in (QUESTION, "And what is the capital of Spain?"):
        parts += [voice.synthesize(text), np.zeros(6 * voice.rate_hz, np.int16)]
    path = tmp_path_factory.mktemp("audio") / "questions.wav"
    soundfile.write(path, np.concatenate(parts), voice.rate_hz)
    return path


def test_a_recording_is_answered_in_time_with_it(
    recording: Path, tmp_path: Path, smollm2_path: Path, whisper_dir: Path
) -> None:
    out = tmp_path / "said.wav"
    result = run("--in", recording, "--out", out, "--fast", "--json")
    assert result.returncode == 0, result.stderr
    talk = json.loads(result.stdout.splitlines()[-1])
    first, second = talk["turns"]
    assert "capital of france" in first["transcript"].lower() and "Paris" in first["reply"]
    assert "spain" in second["transcript"].lower() and second["heard"] == second["reply"].strip()
    for turn in (first, second):
        names = [stage["name"] for stage in turn["stages"]]
        assert names[:2] == ["endpointing", "transcription"] and names[-1] == "playback"
        assert turn["total_ms"] == pytest.approx(sum(s["ms"] for s in turn["stages"]), abs=5)
    speech, rate_hz = soundfile.read(out)
    asked, asked_hz = soundfile.read(recording)
    assert len(speech) / rate_hz >= len(asked) / asked_hz
    began_s = np.flatnonzero(np.abs(speech) > 0.02)[0] / rate_hz
    spoken = np.abs(asked[: 4 * asked_hz]) > 0.02
    ended_s = np.flatnonzero(spoken)[-1] / asked_hz
    assert began_s - ended_s == pytest.approx(first["total_ms"] / 1000, abs=0.15)


def test_text_mode_answers_lines_and_obeys_slashes(smollm2_path: Path) -> None:
    result = run("--text", stdin=f"{QUESTION}\n\n/t\n/r\n/x\n/q\nnever reached\n")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == "Unpaused (eager): The capital of France is Paris."
    assert "never reached" not in result.stdout
    assert "Hidden tokens before each reply: 50." in result.stderr
    assert "tokens/s" in result.stderr


def test_text_mode_ends_with_its_input_and_gives_json(smollm2_path: Path) -> None:
    result = run("--text", "--json", stdin=QUESTION)
    assert result.returncode == 0, result.stderr
    (turn,) = json.loads(result.stdout)["turns"]
    assert turn["reply"] == "The capital of France is Paris." and turn["kind"] == "text"


def test_text_mode_with_standard_input_closed_says_so(smollm2_path: Path) -> None:
    command = [sys.executable, str(ROOT / "app.py"), "listen", "--text"]
    result = subprocess.run(
        ["bash", "-c", '"$@" <&-', "bash", *command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=ROOT,
    )
    assert result.returncode == 2
    assert result.stderr == "unpaused: --text reads standard input, which is closed\n"


def test_an_interrupt_ends_a_recording_and_keeps_what_was_said(
    recording: Path, tmp_path: Path, smollm2_path: Path, whisper_dir: Path
) -> None:
    out = tmp_path / "said.wav"
    files = ["--in", str(recording), "--out", str(out)]
    command = [sys.executable, str(ROOT / "app.py"), "listen", *files]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("You: ")
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert process.wait(LIMIT_S) == 0
        assert time.monotonic() - began < 20
    assert soundfile.info(out).duration > 1
