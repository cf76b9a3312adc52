"""How long a spoken question waits for its answer, and an interruption for silence.

`python -m benchmarks.voice_latency [--engine NAME] [--stt NAME] [--json FILE]`: in real time, with
the real models: twenty questions, each from the acoustic end of speech to the first audible sample
of the answer; word error rate of their transcripts; twenty interruptions, each from its first
sound to silence; and, as fast as it goes, 60 s each of what is no speech, which must be no turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from functools import partial
from typing import Any

from audio.dialogue_events import Heard, RoundBegan
from audio.frames import STT_RATE_HZ
from benchmarks import sounds
from benchmarks.results import result_file, write_json
from benchmarks.voice_models import Bench, turns_of
from benchmarks.voice_room import Speaker
from benchmarks.voice_score import Load, summary
from engine.errors import UnpausedError
from engine.setup import DEFAULT_MODEL

QUESTIONS = (
    "What is the capital of France?",
    "How many legs does a spider have?",
    "Tell me a short story about the sea.",
    "Who wrote Romeo and Juliet?",
    "Why is the sky blue?",
    "What is the largest planet?",
    "Can you help me with my homework?",
    "How do birds fly?",
    "What should I cook for dinner tonight?",
    "Please explain what a computer is.",
    "When did the second world war end?",
    "Can you recommend a good book?",
    "What is two plus two?",
    "Give me three ideas for a birthday present.",
    "Is it cold on the moon?",
    "How far away is the sun?",
    "Tell me something interesting about elephants.",
    "What language do people speak in Brazil?",
    "How can I learn to play the piano?",
    "Thank you very much, that was helpful.",
)
RATES = (1.0, 0.9, 1.15)  # of speaking, in turn
LONG = "Tell me a long story about the sea."
INTERRUPTIONS = (
    "Stop.",
    "Wait a moment.",
    "No, that is not what I asked.",
    "And what about Italy?",
)
_ATTEMPTS = 3
_GAP_S = 0.3  # between two sentences of a reply that goes on
MUST_MS = {"p50": 600.0, "p90": 900.0}
BARGE_IN_MUST_MS = 300.0
WER_MUST = 0.08
NO_SPEECH = {"silence": sounds.silence, "fan": sounds.fan, "hum": sounds.hum, "music": sounds.music}


def ask(bench: Bench, speaker: Speaker, question: str, rate: float) -> dict[str, Any]:
    """One question, as the first of a conversation, and the beginning of its answer.

    An answer that began before the question had ended is counted as `early`, and what is timed is
    the one that followed.
    """
    bench.conversation.clear()
    sound = bench.speech(question, rate)
    since = len(bench.events)
    end = speaker.say(sound) + sounds.acoustic_bounds(sound)[1] / STT_RATE_HZ
    answered = speaker.quiet_until(lambda: bench.audible_since(since, end) is not None)
    heard = [event.text for event in bench.told(Heard, since) if event.final]
    begun = [event.generation for event in bench.told(RoundBegan, since)]
    result: dict[str, Any] = {"question": question, "transcript": " ".join(heard)}
    result["early"] = sum(bench.player.heard_at.get(number, end) < end for number in begun)
    measured = bench.audible_since(since, end)
    if answered and measured is not None:
        result |= {
            "ms": round((bench.player.heard_at[measured.generation] - end) * 1000, 1),
            "waterfall_ms": round(measured.total_ms, 1),
            "stages": {stage.name: round(stage.ms, 1) for stage in measured.stages},
        }
    bench.dialogue.stop()
    speaker.quiet(0.3)
    return result


def interrupt(bench: Bench, speaker: Speaker, number: int) -> float | None:
    """Milliseconds from the first sound of an interruption to the last of the reply; None when the
    reply went on regardless.

    One that comes when nothing is being said interrupts nothing, and is made again.
    """
    for _ in range(_ATTEMPTS):
        generation = answer_at_length(bench, speaker)
        speaker.quiet(0.6 + 0.13 * (number % 5))
        sound = bench.speech(INTERRUPTIONS[number % len(INTERRUPTIONS)])
        began = speaker.say(sound) + sounds.acoustic_bounds(sound)[0] / STT_RATE_HZ
        obeyed = speaker.quiet_until(partial(bench.over, generation), 5.0)
        silent = bench.player.last_heard_at[generation]
        bench.dialogue.stop()
        speaker.quiet(0.3)
        if silent >= began - _GAP_S:
            return round((silent - began) * 1000, 1) if obeyed else None
    raise UnpausedError(f"no reply was still being spoken after {_ATTEMPTS} attempts")


def answer_at_length(bench: Bench, speaker: Speaker) -> int:
    """Have a reply begin that takes long to say; returns its generation once it is audible.

    It is asked for in writing: what is interrupted must not depend on what was understood.
    """
    bench.conversation.clear()
    since = len(bench.events)
    generation = bench.dialogue.say(LONG)
    if not speaker.quiet_until(lambda: bench.audible_since(since) is not None):
        raise UnpausedError(f"nothing was said to {LONG!r}")
    return generation


def run(engine: str, stt: str) -> dict[str, Any]:
    """Everything, in real time: about four minutes."""
    bench = Bench(engine, stt)
    result: dict[str, Any] = {
        "benchmark": "voice_latency",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "engine": engine,
        "model": DEFAULT_MODEL,
        "stt": stt,
        "judge_ms": round(bench.judge_ms, 1),
        "must": {"first_audible_ms": MUST_MS, "barge_in_p90_ms": BARGE_IN_MUST_MS, "wer": WER_MUST},
        "turns_of_no_speech": {
            name: turns_of(bench, make(60.0)) for name, make in NO_SPEECH.items()
        },
    }
    bench.player.start()
    bench.dialogue.listen(True)
    speaker = Speaker(bench.dialogue)
    speaker.quiet(2.0)
    ask(bench, speaker, "Hello, how are you?", 1.0)  # whatever is done once is done now
    load = Load()
    asked = []
    for number, question in enumerate(QUESTIONS):
        asked.append(ask(bench, speaker, question, RATES[number % len(RATES)]))
        print(json.dumps(asked[-1]), flush=True)
    result["others_cores"] = load.others()
    stops = [interrupt(bench, speaker, number) for number in range(len(QUESTIONS))]
    bench.player.close()
    bench.dialogue.close()
    time.sleep(0.5)  # what was stopped ends within a token
    bench.engine.close()
    return result | summary(asked, stops) | {"turns": asked, "barge_ins_ms": stops}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--engine", default="persistent-cpu")
    arguments.add_argument("--stt", default="whisper-tiny.en")
    arguments.add_argument("--json", type=result_file, help="write the result to this file")
    options = arguments.parse_args()
    result = run(options.engine, options.stt)
    if options.json:
        write_json(options.json, result)
    print(json.dumps({name: value for name, value in result.items() if name != "turns"}))


if __name__ == "__main__":
    main()
