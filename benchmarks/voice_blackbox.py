"""The page's socket judged from outside, with the real models.

`python -m benchmarks.voice_blackbox [--engine NAME] [--repeat N] [--json FILE]`: voicebench plays a
spoken conversation into the socket, records both sides and derives every figure from the sound: how
long answers take, whether an interruption silences them, and whether a cough or a fan does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from voicebench.bench import BenchResult

from assets.resolver import resolve
from audio.frames import STT_RATE_HZ, Resampler, to_pcm16, write_wav
from audio.pipeline import VoicePipeline
from audio.smart_turn import SmartTurn
from audio.stt import Transcriber
from audio.tts import Synthesizer
from audio.vad import StreamingVad
from benchmarks import sounds
from benchmarks.blackbox import play, socket_of
from benchmarks.results import result_file, write_json
from engine.conversation import Conversation
from engine.registry import ENGINES
from engine.sampling import SamplingParams
from engine.setup import DEFAULT_MODEL, locate_model, open_engine, open_model
from ui.services import Runtime, Services
from ui.visitors import Visitors

_ANSWERED = {"after": "agent_speech_start", "timeout_ms": 8000}


def script(folder: Path, voice: Synthesizer) -> dict[str, Any]:
    """The conversation, its sounds written into `folder`."""

    def say(name: str, text: str) -> dict[str, Any]:
        spoken = Resampler(voice.rate_hz, STT_RATE_HZ).push(
            voice.synthesize(text).astype(np.float32) / 32768, last=True
        )
        return sound(name, 0.5 * spoken)

    def sound(name: str, samples: np.ndarray) -> dict[str, Any]:
        write_wav(folder / f"{name}.wav", to_pcm16(samples), STT_RATE_HZ)
        return {"file": f"{name}.wav"}

    def turn(name: str, audio: dict[str, Any], expect: str, delay_ms: int, **more: Any) -> Any:
        start = {**_ANSWERED, "delay_ms": delay_ms}
        return {"id": name, "audio": audio, "expect": expect, "start": start, **more}

    france, stars = "What is the capital of France?", "How many stars are there in the sky?"
    return {
        "name": "the page's socket",
        "sample_rate": STT_RATE_HZ,
        "max_duration_ms": 110_000,
        "tail_ms": 1500,
        "turns": [
            {
                "id": "fan",
                "audio": sound("fan", sounds.fan(10.0)),
                "expect": "ignore",
                "start": {"after": "session_start", "delay_ms": 500},
            },
            {
                "id": "question",
                "audio": say("france", france),
                "expect": "respond",
                "text": france,
                "start": {"after": "previous_turn_end", "delay_ms": 1500},
            },
            {
                "id": "long question",
                "audio": say("piano", "How can I learn to play the piano?"),
                "expect": "respond",
                "text": "How can I learn to play the piano?",
                "start": {"after": "agent_speech_end", "delay_ms": 500, "timeout_ms": 20000},
            },
            turn("cough", sound("cough", sounds.cough()), "ignore", 1500),
            {
                "id": "stop",
                "audio": say("stop", "Stop."),
                "expect": "stop",
                "max_stop_ms": 600,
                "start": {"after": "previous_turn_end", "delay_ms": 1200},
            },
            {
                "id": "another question",
                "audio": say("explain", "Please explain what a computer is."),
                "expect": "respond",
                "text": "Please explain what a computer is.",
                "start": {"after": "previous_turn_end", "delay_ms": 1500},
            },
            turn("interruption", say("stars", stars), "stop", 2000, text=stars, max_stop_ms=600),
        ],
    }


@contextmanager
def served(engine_name: str) -> Iterator[str]:
    """The socket on a free port of this machine; its address."""
    name, path = locate_model(DEFAULT_MODEL)
    model = open_model(name, path)
    engine = open_engine(engine_name, model, speaking=True)
    transcriber = Transcriber(resolve("stt"), threads=os.cpu_count() or 1)
    pipeline = VoicePipeline(transcriber, Synthesizer(resolve("voice")))
    pipeline.warm()
    judge = SmartTurn(resolve("turn"))
    judge.warm_ms()

    def conversation() -> Conversation:
        made = Conversation(model, enable_thinking=False)
        made.warm(engine)
        return made

    runtime = Runtime(
        Services(
            model_name=name,
            engines=list(ENGINES.values()),
            default_engine=engine_name,
            params=SamplingParams(repetition_penalty=1.1, max_tokens=96),
            make_engine=lambda _: engine,
            make_conversation=conversation,
            make_pipeline=lambda: pipeline,
            make_vad=StreamingVad,
            make_judge=lambda: judge.probability,
        )
    )
    for thread in runtime.warm():
        thread.join()
    visitors = Visitors(runtime)
    try:
        with socket_of(visitors) as url:
            yield url
    finally:
        visitors.close_all()
        time.sleep(0.5)
        engine.close()


def run(engine: str, repeat: int) -> BenchResult:
    """Play the script `repeat` times."""
    with tempfile.TemporaryDirectory() as folder, served(engine) as url:
        told = script(Path(folder), Synthesizer(resolve("voice")))
        return play(told, url, repeat, Path(folder))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--engine", default="persistent-cpu")
    arguments.add_argument("--repeat", type=int, default=1)
    arguments.add_argument("--json", type=result_file, help="write the result to this file")
    options = arguments.parse_args()
    result = run(options.engine, options.repeat)
    turns = [
        {"id": turn.id, "expect": turn.expect, "passed": turn.passed, "wer": turn.wer,
         "response_ms": turn.response_latency_ms, "stop_ms": turn.stop_latency_ms,
         "transcript": turn.transcript, "notes": turn.notes}
        for session in result.sessions for turn in session.turns
    ]  # fmt: skip
    told = {
        "benchmark": "voice_blackbox",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "engine": options.engine,
        "summary": result.summary,
        "turns": turns,
    }
    if options.json:
        write_json(options.json, told)
    for turn in turns:
        print(json.dumps(turn))
    print(json.dumps({**told, "turns": len(turns)}))


if __name__ == "__main__":
    main()
