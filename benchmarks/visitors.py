"""Eight visitors share one engine: does anything cross, fail, or wait longer than it was told?

`python -m benchmarks.visitors [--visitors 8] [--minutes 10] [--engine NAME] [--json FILE]`

The server is a process of its own. Half of the visitors type, half hold the button and speak, in
real time, and each listens to its answer to the end. Every visitor first goes through its questions
alone; later, among the others, it must get the same answers to the same questions. What came as
audio is transcribed afterwards, and must be its own answer rather than anybody else's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assets.resolver import resolve
from audio.frames import STT_RATE_HZ, Resampler, from_pcm16, to_pcm16
from audio.stt import Transcriber
from audio.tts import Synthesizer
from benchmarks.results import result_file, write_json
from benchmarks.served import Served, check_environment, served
from benchmarks.visitor import Fault, Heard, Visitor
from benchmarks.waits import right_on_average, wait_figures
from engine.errors import UnpausedError

QUESTIONS = (
    ("What is the capital of France?", "And of Italy?", "Which is larger?"),
    ("How many legs does a spider have?", "And an ant?", "Name another insect."),
    ("Tell me about the sea.", "What lives in it?", "Is it salty?"),
    ("Who wrote Romeo and Juliet?", "When was that?", "What is it about?"),
    ("Why is the sky blue?", "And why is the grass green?", "What colour is snow?"),
    ("What is the largest planet?", "How far away is it?", "Has it any moons?"),
    ("How do I bake bread?", "How long does it take?", "What goes well with it?"),
    ("What is a violin?", "How many strings has it?", "Who plays it?"),
)
PAUSE_S = (1.0, 4.0)  # of thought between two turns


@dataclass
class Story:
    """One visitor's part: its questions, how it asks them, and what came of it."""

    number: int
    questions: tuple[str, ...]
    speech: list[np.ndarray]  # int16 [n] at 16 kHz each; empty for one that types
    alone: list[str] = field(default_factory=list)
    answers: list[tuple[str, str]] = field(default_factory=list)  # (question, answer), recorded
    heard: list[Heard] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    foreign: int = 0

    async def ask(self, visitor: Visitor, index: int) -> Heard:
        if self.speech:
            return await visitor.speak(self.speech[index], self.questions[index])
        return await visitor.type_(self.questions[index])


def stories(count: int) -> list[Story]:
    voice = Synthesizer(resolve("voice"))
    made = []
    for number in range(count):
        questions = QUESTIONS[number % len(QUESTIONS)]
        speech = [_spoken(voice, text) for text in questions] if number % 2 else []
        made.append(Story(number, questions, speech))
    return made


def _spoken(voice: Synthesizer, text: str) -> np.ndarray:
    samples = from_pcm16(voice.synthesize(text))
    at_rate = Resampler(voice.rate_hz, STT_RATE_HZ).push(samples, last=True)
    silence = np.zeros(STT_RATE_HZ // 5, np.float32)
    return to_pcm16(np.concatenate([silence, at_rate, silence]))


async def alone(url: str, story: Story) -> None:
    """The answers that the visitor gets when there is nobody else."""
    async with Visitor(url, fast=True) as visitor:
        for index in range(len(story.questions)):
            await story.ask(visitor, index)
        story.alone = [turn["answer"] for turn in (await visitor.ledger())["turns"]]


async def among_others(url: str, story: Story, until: float) -> None:
    """Go through the questions again and again, each time with a page opened anew."""
    chance = random.Random(story.number)
    await asyncio.sleep(chance.uniform(0, 2))
    while time.monotonic() < until:
        try:
            await _once(url, story, until, chance)
        except (Fault, OSError) as fault:
            story.faults.append(str(fault))
        except Exception as fault:  # whatever it is, the others go on
            story.faults.append(f"{type(fault).__name__}: {fault}")


async def _once(url: str, story: Story, until: float, chance: random.Random) -> None:
    async with Visitor(url) as visitor:
        try:
            for index in range(len(story.questions)):
                story.heard.append(await story.ask(visitor, index))
                await asyncio.sleep(chance.uniform(*PAUSE_S))
                if time.monotonic() >= until:
                    break
        finally:
            story.faults += visitor.faults
            story.foreign += visitor.foreign
        turns = (await visitor.ledger())["turns"]
        story.answers += [(turn["question"], turn["answer"]) for turn in turns]
        asked = [heard.transcript or heard.question for heard in story.heard[-len(turns) :]]
        if [turn["question"] for turn in turns] != asked:
            story.faults.append("the session recorded other questions than were asked")


def crossed_text(made: list[Story]) -> list[str]:
    """Answers that differ from those the visitor got alone."""
    wrong = []
    for story in made:
        for index, (question, answer) in enumerate(story.answers):
            wanted = story.alone[index % len(story.questions)]
            if answer != wanted:
                wrong.append(f"visitor {story.number}: {question!r}: {answer!r}, not {wanted!r}")
    return wrong


def crossed_audio(made: list[Story], checked: int = 3) -> list[str]:
    """Spoken answers, the last of each visitor, that sound more like another visitor's."""
    transcriber = Transcriber(resolve("stt"), threads=os.cpu_count() or 1)
    texts = [" ".join(story.alone) for story in made]
    wrong = []
    for story in made:
        spoken = [heard for heard in story.heard if heard.pcm][-checked:]
        for heard in spoken:
            pcm = np.frombuffer(b"".join(heard.pcm), "<i2")
            samples = Resampler(heard.rate_hz, STT_RATE_HZ).push(from_pcm16(pcm), last=True)
            words = _words(transcriber.transcribe(samples).text)
            shares = [len(words & _words(text)) / max(1, len(words)) for text in texts]
            if words and max(shares) > shares[story.number]:
                nearest = shares.index(max(shares))
                wrong.append(f"visitor {story.number} heard what visitor {nearest} was told")
    return wrong


def _words(text: str) -> set[str]:
    return {word.strip(".,;:!?\"'()*") for word in text.lower().split()} - {""}


async def simulate(server: Served, made: list[Story], minutes: float) -> float:
    """Seconds that it took."""
    for story in made:
        await alone(server.url, story)
    print(f"Alone: {sum(len(story.alone) for story in made)} answers", file=sys.stderr)
    began = time.monotonic()
    until = began + 60 * minutes
    await asyncio.gather(*(among_others(server.url, story, until) for story in made))
    return time.monotonic() - began


def report(made: list[Story], server: Served, seconds: float) -> dict[str, Any]:
    heard = [heard for story in made for heard in story.heard]
    short = [h for h in heard if h.announced is not None and h.samples != h.announced]
    counted = server.metrics()
    dropped = {name: value for name, value in counted.items() if "dropped_total" in name}
    return {
        "visitors": len(made),
        "seconds": round(seconds, 1),
        "turns": len(heard),
        "finished": sum(h.finish == "complete" for h in heard),
        "spoken_answers": sum(h.samples > 0 for h in heard),
        "faults": [fault for story in made for fault in story.faults],
        "crossed_text": crossed_text(made),
        "crossed_audio": crossed_audio(made),
        "foreign_frames": sum(story.foreign for story in made),
        "answers_cut_short": len(short),
        "wait": wait_figures(heard),
        "dropped": dropped,
        "rss_mb": round(server.process.memory_info().rss / 1e6, 1),
    }


def passed(result: dict[str, Any]) -> bool:
    """Nothing crossed, nobody met a fault, and waits were as told within 30%: the middle one, and
    all of them on average."""
    clean = not any(result[name] for name in ("faults", "crossed_text", "crossed_audio"))
    clean = clean and not result["foreign_frames"] and not result["answers_cut_short"]
    return clean and right_on_average(result["wait"]) and 0 < result["finished"] == result["turns"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--visitors", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--engine", default="persistent-cpu")
    parser.add_argument("--json", type=result_file, help="write the result to this file")
    options = parser.parse_args()
    check_environment()
    try:
        made = stories(options.visitors)
        with served(options.engine) as server:
            seconds = asyncio.run(simulate(server, made, options.minutes))
            result = {"engine": options.engine, **report(made, server, seconds)}
    except UnpausedError as error:
        print(f"unpaused: {error}", file=sys.stderr)
        return 2
    result["passed"] = passed(result)
    if options.json:
        write_json(options.json, result)
    print(json.dumps(result, indent=1))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
