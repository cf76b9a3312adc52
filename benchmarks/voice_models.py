"""The models of a voice, one dialogue with them, and what it told."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import onnxruntime
from piper import PiperVoice, SynthesisConfig

from assets.resolver import resolve
from audio.dialogue import Dialogue, DialogueConfig
from audio.dialogue_events import Event, Measured, RoundBegan, RoundOver
from audio.frames import STT_RATE_HZ, Resampler
from audio.pipeline import VoicePipeline
from audio.rounds import Parts, Request
from audio.runner import Runner
from audio.smart_turn import SmartTurn
from audio.stt import Transcriber
from audio.tts import Synthesizer
from audio.vad import BLOCK, StreamingVad
from benchmarks import sounds
from benchmarks.voice_room import Player
from engine.conversation import Conversation
from engine.sampling import SamplingParams
from engine.setup import DEFAULT_MODEL, locate_model, open_engine, open_model

T = TypeVar("T")

SEED = 7  # of the voices' randomness: every run asks in the same words and the same sound


class Bench:
    """The models, one dialogue, and what it told."""

    def __init__(self, engine_name: str, stt: str) -> None:
        onnxruntime.set_seed(SEED)
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
        runner: Runner | None = None,
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
            runner,
            clock,
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

    def over(self, generation: int) -> bool:
        """Whether that round is."""
        return any(event.generation == generation for event in self.told(RoundOver, 0))


class Between:
    """Does a dialogue's work between two blocks, so that none is left when the sound is over."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()

    def run(self, work: Callable[[], Iterable[T]], deliver: Callable[[T], None]) -> None:
        def follow() -> None:
            for result in work():
                deliver(result)

        self._due.append(follow)

    def catch_up(self) -> None:
        while self._due:
            self._due.popleft()()


def turns_of(bench: Bench, sound: np.ndarray) -> int:
    """How many turns `sound` and a second of silence are taken for, fed as fast as it goes."""
    told: list[Event] = []
    fed, runner = [0], Between()
    conversation = Conversation(bench.model, enable_thinking=False)
    dialogue = bench.make_dialogue(conversation, told.append, lambda: fed[0] / STT_RATE_HZ, runner)
    dialogue.listen(True)
    sound = np.concatenate([sound, np.zeros(STT_RATE_HZ, np.float32)])
    for at in range(0, len(sound) - BLOCK, BLOCK):
        fed[0] += BLOCK
        dialogue.push(sound[at : at + BLOCK])
        runner.catch_up()
    dialogue.close()
    return sum(isinstance(event, RoundBegan) for event in told)
