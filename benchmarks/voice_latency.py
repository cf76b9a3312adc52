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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
from piper import PiperVoice, SynthesisConfig

from assets.resolver import resolve
from audio.completeness import words
from audio.dialogue import Dialogue, DialogueConfig
from audio.dialogue_events import Event, Heard, Measured, RoundBegan, RoundOver
from audio.frames import STT_RATE_HZ, Resampler
from audio.pipeline import VoicePipeline
from audio.rounds import Parts, Request
from audio.smart_turn import SmartTurn
from audio.stt import Transcriber
from audio.tts import Synthesizer
from audio.vad import BLOCK, StreamingVad
from benchmarks import sounds
from benchmarks.voice_room import Player, Speaker
from engine.conversation import Conversation
from engine.sampling import SamplingParams
from engine.setup import DEFAULT_MODEL, locate_model, open_engine, open_model

T = TypeVar("T")

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
INTERRUPTIONS = (
    "Stop.",
    "Wait a moment.",
    "No, that is not what I asked.",
    "And what about Italy?",
)
_GAP_S = 0.3  # between two sentences of a reply that goes on
MUST_MS = {"p50": 600.0, "p90": 900.0}
BARGE_IN_MUST_MS = 300.0
WER_MUST = 0.08
NO_SPEECH = {"silence": sounds.silence, "fan": sounds.fan, "hum": sounds.hum, "music": sounds.music}


class Bench:
    """The models, one dialogue, and what it told."""

    def __init__(self, engine_name: str, stt: str) -> None:
        name, path = locate_model(DEFAULT_MODEL)
        self.model = open_model(name, path)
        self.engine = open_engine(engine_name, self.model, speaking=True)
        transcriber = Transcriber(resolve(stt), threads=os.cpu_count() or 1)
        self.pipeline = VoicePipeline(transcriber, Synthesizer(resolve("voice")))
        self.pipeline.warm()
        self.judge = SmartTurn(resolve("turn"))
        self.judge_ms = self.judge.warm_ms()
        self.params = SamplingParams(repetition_penalty=1.1, max_tokens=96)
        self._voice = PiperVoice.load(resolve("voice"))
        self.events: list[Event] = []
        self.player = Player()
        self.conversation = Conversation(self.model, enable_thinking=False)
        self.conversation.warm(self.engine)
        self.dialogue = self.make_dialogue(self.conversation, self._listen)
        self.player.dialogue = self.dialogue

    def make_dialogue(
        self,
        conversation: Conversation,
        listener: Callable[[Event], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> Dialogue:
        """A dialogue with the same models."""

        @contextmanager
        def open_turn(request: Request) -> Iterator[Parts]:
            def begin(text: str) -> Any:
                return self.pipeline.text_turn(
                    text, conversation, self.engine, self.params, request.speak, joins=False
                )

            yield Parts(conversation, begin, self.engine.name)

        return Dialogue(
            open_turn,
            self.pipeline.transcribe,
            listener,
            StreamingVad(),
            self.judge.probability,
            DialogueConfig(),
            clock=clock,
        )

    def _listen(self, event: Event) -> None:
        self.player.take(event)
        self.events.append(event)

    def speech(self, text: str, rate: float = 1.0) -> np.ndarray:
        """float32 [n] at 16 kHz of `text`, without the silence around it."""
        config = SynthesisConfig(length_scale=1 / rate, volume=0.5)
        spoken = [chunk.audio_float_array for chunk in self._voice.synthesize(text, config)]
        resampler = Resampler(self._voice.config.sample_rate, STT_RATE_HZ)
        sound = resampler.push(np.concatenate(spoken), last=True)
        first, end = sounds.acoustic_bounds(sound)
        return sound[max(0, first - 320) : end + 1600]  # what a voice still does below the bound

    def told(self, kind: type[T], since: int) -> list[T]:
        """The events of one kind from number `since` on."""
        return [event for event in self.events[since:] if isinstance(event, kind)]

    def audible_since(self, since: int, at: float = 0.0) -> Measured | None:
        """The measurement of a reply that became audible after `at`, told of since then."""
        heard_at = self.player.heard_at
        told = self.told(Measured, since)
        return next((e for e in told if heard_at.get(e.generation, 0.0) > at), None)


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
    """Milliseconds from the first sound of an interruption to the last of the reply.

    None when there was nothing to interrupt any more, or the reply went on regardless.
    """
    bench.conversation.clear()
    since = len(bench.events)
    speaker.say(bench.speech("Tell me a long story about the sea."))
    if not speaker.quiet_until(lambda: bench.audible_since(since) is not None):
        return None
    speaker.quiet(0.6 + 0.13 * (number % 5))
    generation = bench.told(Measured, since)[-1].generation
    sound = bench.speech(INTERRUPTIONS[number % len(INTERRUPTIONS)])
    began = speaker.say(sound) + sounds.acoustic_bounds(sound)[0] / STT_RATE_HZ
    over = speaker.quiet_until(
        lambda: any(e.generation == generation for e in bench.told(RoundOver, since)), 5.0
    )
    silent = bench.player.last_heard_at[generation]
    bench.dialogue.stop()
    speaker.quiet(0.3)
    if not over or silent < began - _GAP_S:  # the reply had ended before: nothing to interrupt
        return None
    return round((silent - began) * 1000, 1)


def turns_of(bench: Bench, sound: np.ndarray) -> int:
    """How many turns `sound` was taken for, fed as fast as it goes."""
    told: list[Event] = []
    fed = [0]
    conversation = Conversation(bench.model, enable_thinking=False)
    dialogue = bench.make_dialogue(conversation, told.append, lambda: fed[0] / STT_RATE_HZ)
    dialogue.listen(True)
    for at in range(0, len(sound) - BLOCK, BLOCK):
        fed[0] += BLOCK
        dialogue.push(sound[at : at + BLOCK])
    dialogue.close()
    return sum(isinstance(event, RoundBegan) for event in told)


def errors(reference: list[str], heard: list[str]) -> int:
    """Word edits between the two (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for i, left in enumerate(reference):
        diagonal, row[0] = row[0], i + 1
        for j, right in enumerate(heard, 1):
            best = min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
            diagonal, row[j] = row[j], best
    return row[-1]


class Load:
    """How much of the machine others took while we measured."""

    def __init__(self) -> None:
        self._start = self._spent()

    def others(self) -> float:
        """Cores' worth of processor time that was not ours, since the start."""
        now = self._spent()
        wall, busy, own = (after - before for after, before in zip(now, self._start, strict=True))
        return round(max(0.0, busy - own) / wall, 3)

    def _spent(self) -> tuple[float, float, float]:
        machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return time.perf_counter(), sum(machine) - idle, own.user + own.system


def percentiles(values: list[float]) -> dict[str, float | int]:
    p50, p90 = np.percentile(values, [50, 90])
    return {"n": len(values), "p50": round(float(p50), 1), "p90": round(float(p90), 1),
            "max": round(max(values), 1)}  # fmt: skip


def summary(asked: list[dict[str, Any]], stops: list[float | None]) -> dict[str, Any]:
    """What the runs come to, beside what they must reach."""
    total = sum(len(words(turn["question"])) for turn in asked)
    wrong = sum(errors(words(turn["question"]), words(turn["transcript"])) for turn in asked)
    answered = [turn for turn in asked if "ms" in turn]
    names = sorted({name for turn in answered for name in turn["stages"]})
    stages = {name: percentiles([turn["stages"].get(name, 0.0) for turn in answered])["p50"]
              for name in names}  # fmt: skip
    sums = [abs(sum(turn["stages"].values()) - turn["waterfall_ms"]) for turn in answered]
    return {
        "first_audible_ms": percentiles([turn["ms"] for turn in answered]),
        "waterfall_ms": percentiles([turn["waterfall_ms"] for turn in answered]),
        "stages_p50_ms": stages,
        "parts_against_total_max_ms": round(max(sums), 2),
        "early": sum(turn["early"] for turn in asked),
        "unanswered": len(asked) - len(answered),
        "word_error_rate": round(wrong / total, 4),
        "barge_in_ms": percentiles([stop for stop in stops if stop is not None]),
        "barge_ins_not_measured": sum(stop is None for stop in stops),
    }


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
    arguments.add_argument("--json", type=Path, help="write the result to this file")
    options = arguments.parse_args()
    result = run(options.engine, options.stt)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in result.items() if name != "turns"}))


if __name__ == "__main__":
    main()
