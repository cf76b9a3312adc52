"""Does `listen` lose any of the microphone, how soon does it listen, and how soon does it answer?

`python -m benchmarks.listening [--minutes 10] [--engine E] [--json FILE]`: on virtual sound
devices (see `virtual_devices`), with a question every 20 s, so that transcription, decoding and
synthesis compete with the callbacks. It prints what the microphone lost (blocks that the system
dropped because the callback came late, and samples that nobody read in time), the time from the
start of the process to "listening", and the waterfall of every answer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from assets.resolver import resolve
from audio.tts import Synthesizer
from benchmarks.results import result_file, write_json
from benchmarks.virtual_devices import DEVICE, VirtualDevices, missing
from engine.errors import UnpausedError

QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "How does a lighthouse work?",
    "What is a good name for a cat?",
    "Tell me something about the moon.",
)
EVERY_S = 20.0
STARTS = 3
WAIT_S = 120.0


class Assistant:
    """`app.py listen` without a terminal."""

    def __init__(self, devices: VirtualDevices, engine: str) -> None:
        self.begun_s = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "app.py", "listen", "--json", "--headset", "--engine", engine,
             "--microphone", DEVICE, "--loudspeaker", DEVICE],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=devices.environment,
        )  # fmt: skip
        self.notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.notices.put(line.rstrip())

    def wait_listening(self) -> float:
        """Seconds from the start of the process until it listens. Raises `UnpausedError`."""
        said: list[str] = []
        try:
            while not (line := self.notices.get(timeout=WAIT_S)).startswith("Listening:"):
                said.append(line)
        except queue.Empty:
            self._process.kill()
            last = said[-1] if said else "nothing"
            raise UnpausedError(
                f"it does not listen after {WAIT_S:.0f} s; it said {last}"
            ) from None
        return time.perf_counter() - self.begun_s

    def end(self) -> dict[str, Any]:
        """What it reports at its end."""
        self._process.send_signal(signal.SIGINT)
        out, _ = self._process.communicate(timeout=WAIT_S)
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result


def speak(folder: Path) -> list[Path]:
    """The questions as WAV."""
    voice, paths = Synthesizer(resolve("voice")), []
    for number, text in enumerate(QUESTIONS):
        paths.append(folder / f"{number}.wav")
        soundfile.write(paths[-1], voice.synthesize(text), voice.rate_hz)
    return paths


def measure(minutes: float, engine: str) -> dict[str, Any]:
    """Everything, on devices that exist only meanwhile."""
    with tempfile.TemporaryDirectory() as folder, VirtualDevices() as devices:
        questions = speak(Path(folder))
        starts = []
        for _ in range(STARTS):
            assistant = Assistant(devices, engine)
            starts.append(assistant.wait_listening())
            assistant.end()
        assistant = Assistant(devices, engine)
        starts.append(assistant.wait_listening())
        result = converse(assistant, devices, questions, minutes * 60)
    return report(result, starts[1:], minutes, engine)


def converse(
    assistant: Assistant, devices: VirtualDevices, questions: list[Path], seconds: float
) -> dict[str, Any]:
    """Ask in turn, until the time is over."""
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        due = time.monotonic() + EVERY_S
        devices.say(questions[number % len(questions)])
        number += 1
        time.sleep(max(0.0, min(due, end) - time.monotonic()))
    return {**assistant.end(), "asked": number}


def report(
    result: dict[str, Any], starts: list[float], minutes: float, engine: str
) -> dict[str, Any]:
    """The figures, JSON-ready."""
    turns = [turn for turn in result["turns"] if turn["stages"]]
    totals = [turn["total_ms"] for turn in turns if turn["stages"][-1]["name"] == "playback"]
    names = dict.fromkeys(stage["name"] for turn in turns for stage in turn["stages"])
    return {
        "benchmark": "listening",
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}",
        "engine": engine,
        "minutes": minutes,
        "blocks": result["blocks"],
        "missed_ms": result["missed_ms"],
        "output_underflows": result["underflows"],
        "speech_gaps": result["gaps"],
        "asked": result["asked"],
        "answered": len(totals),
        "start_to_listening_s": [round(start, 2) for start in starts],
        "first_audio_ms": {
            "p50": _percentile(totals, 50), "p90": _percentile(totals, 90),
        },
        "stages_p50_ms": {name: _stage(turns, name) for name in names},
        "slowest": [_parts(turn) for turn in sorted(turns, key=lambda turn: -turn["total_ms"])[:3]],
    }  # fmt: skip


def _parts(turn: dict[str, Any]) -> dict[str, Any]:
    """Where a turn's time went."""
    stages = {stage["name"]: round(stage["ms"], 1) for stage in turn["stages"]}
    return {"asked": turn["transcript"], "total_ms": round(turn["total_ms"], 1), **stages}


def _stage(turns: list[dict[str, Any]], name: str) -> float | None:
    found = [s["ms"] for turn in turns for s in turn["stages"] if s["name"] == name]
    return _percentile(found, 50)


def _percentile(values: list[float], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 1) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--engine", default="persistent-cpu")
    parser.add_argument(
        "--json", type=result_file, metavar="FILE", help="write the figures there too"
    )
    options = parser.parse_args()
    if reason := missing():
        raise UnpausedError(f"no virtual sound devices: {reason}")
    figures = measure(options.minutes, options.engine)
    if options.json:
        write_json(options.json, figures)
    print(json.dumps(figures, indent=2))
    if figures["missed_ms"]:
        sys.exit(f"the microphone lost {figures['missed_ms']} ms")


if __name__ == "__main__":
    try:
        main()
    except UnpausedError as error:
        sys.exit(f"unpaused: {error}")
