"""Who answers in `listen`: the models, the engines to choose from, and one conversation."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from assets.console import ConsoleProgress
from assets.speech import locate_stt, locate_voice
from audio.rounds import Parts, Request
from audio.turn import Turn
from engine.conversation import Conversation, check_context
from engine.errors import UnpausedError
from engine.registry import ENGINES
from engine.sampling import SamplingParams
from ui.loading import (
    lazy_engines,
    load_judge,
    load_model,
    load_pipeline,
    locate_models,
    sampling,
    warm_conversation,
)
from ui.trace import Trace, first_difference

if TYPE_CHECKING:
    import numpy as np

    from audio.pipeline import VoicePipeline
    from audio.tts import Synthesizer
    from audio.vad import StreamingVad
    from engine.base import DecodeEngine
    from engine.reply import ReplyStream
    from ui.services import Judge

HIDDEN_STEPS = (0, 50, 150, 300)  # tokens thought before a reply, as the key walks through them


class Aside(Turn):
    """A turn that is said aloud and is no part of any conversation."""

    def join(self) -> None:
        return


class Unmoved:
    """Stands for the conversation of an `Aside`: nothing that becomes of it matters there."""

    def keep_heard(self, text: str) -> None:
        return

    def retract(self) -> None:
        return


class Assistant:
    """One conversation and whatever answers in it. `engine_name` is of the turns to come."""

    def __init__(
        self,
        conversation: Conversation,
        engines: Mapping[str, Callable[[], DecodeEngine]],
        engine_name: str,
        params: SamplingParams,
        pipeline: VoicePipeline | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.conversation, self.engine_name, self.judge = conversation, engine_name, judge
        self.hidden_tokens = 0
        self.answers: Callable[[str], None] = lambda name: None  # told which engine begins a reply
        self._repeated: tuple[ReplyStream, ReplyStream] | None = None
        self._engines, self._params, self._pipeline = engines, params, pipeline

    @property
    def model_name(self) -> str:
        return self.conversation.model.name

    def transcribe(self, samples: np.ndarray) -> str:
        """What was said in float32 [n] at 16 kHz."""
        assert self._pipeline is not None, "nobody listens without it"
        return self._pipeline.transcribe(samples)

    @contextmanager
    def open_turn(self, request: Request) -> Iterator[Parts]:
        """A dialogue's way to a reply. A request's option is the engine of an `again`."""
        again, last = isinstance(request.options, str), self.conversation.last
        name = str(request.options) if again else self.engine_name
        engine = self._engines[name]()
        self.answers(name)
        if again and last is not None:
            yield Parts(Unmoved(), lambda _: self._again(engine, last, request), name)
            return
        self.conversation.hidden_tokens = self.hidden_tokens
        yield Parts(self.conversation, lambda text: self._reply(engine, text, request), name)

    def switch(self) -> str:
        """Choose the next engine for the turns to come; returns its name."""
        self.engine_name = self._after(self.engine_name)
        return self.engine_name

    def rival(self) -> str:
        """An engine that did not give the last reply: the one chosen, or else the next."""
        if self.conversation.last is None:
            raise UnpausedError("ask something first: again repeats the last answer")
        before = self.conversation.last.metrics().engine
        return self.engine_name if self.engine_name != before else self._after(before)

    def _after(self, name: str) -> str:
        """Raises `UnpausedError` where there is no other engine."""
        names = list(self._engines)
        if len(names) < 2:
            raise UnpausedError(f"{names[0]} is the only engine that runs here")
        return names[(names.index(name) + 1) % len(names)]

    def load(self, name: str) -> None:
        """Make the engine now, which may take seconds, and not when a reply waits for it."""
        self._engines[name]()

    def think(self) -> int:
        """Go to the next number of hidden tokens before a reply; returns it."""
        after = [steps for steps in HIDDEN_STEPS if steps > self.hidden_tokens]
        self.hidden_tokens = after[0] if after else HIDDEN_STEPS[0]
        return self.hidden_tokens

    def question(self) -> str:
        """What the last reply answered; "" before there is one."""
        return self.conversation.last.user_text if self.conversation.last else ""

    def _reply(self, engine: DecodeEngine, text: str, request: Request) -> Turn:
        conversation, params = self.conversation, self._params
        return Turn(
            lambda heard: conversation.reply(engine, heard, params, joins=False),
            self._voice(request),
            text=text,
        )

    def _again(self, engine: DecodeEngine, last: ReplyStream, request: Request) -> Turn:
        def begin(_: str) -> ReplyStream:
            self._repeated = (last, self.conversation.again(engine, last))
            return self._repeated[1]

        return Aside(begin, self._voice(request), text=last.user_text)

    def _voice(self, request: Request) -> Synthesizer | None:
        return self._pipeline.synthesizer if self._pipeline and request.speak else None

    def comparison(self) -> str:
        """Whether the reply said again was the same, token by token; "" when none was."""
        if self._repeated is None:
            return ""
        (first, second), self._repeated = self._repeated, None
        one, two = Trace.of(first, ""), Trace.of(second, "")
        at = first_difference(one, two)
        ratio = f"{one.engine} {one.rate:,.0f} tokens/s, {two.engine} {two.rate:,.0f} tokens/s"
        if at is None:
            return f"again: every token the same; {ratio}"
        return f"again: the tokens differ from number {at + 1} on; {ratio}"


def load_assistant(options: argparse.Namespace, speaking: bool = True) -> Assistant:
    """Everything that a turn needs, loaded side by side and warm. Raises `UnpausedError`."""
    params = sampling(options)
    check_context(options.context)
    if speaking:  # a name that nobody knows is said before anything is loaded
        with ConsoleProgress() as progress:
            locate_stt(options.stt, progress)
            locate_voice(options.voice, progress)
    with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        speech = pool.submit(_load_speech, options) if speaking else None
        name, path, drafting = locate_models(options)
        model = load_model(options, name, path)
        engines = lazy_engines(_names(options.engine), lambda: model, drafting, speaking)
        conversation = warm_conversation(options, model, engines[options.engine]())
        pipeline, judge = speech.result() if speech else (None, None)
    return Assistant(conversation, engines, options.engine, params, pipeline, judge)


def _names(asked: str) -> list[str]:
    """The engines that run here, and the one that was asked for."""
    return [name for name, entry in ENGINES.items() if name == asked or not entry.unavailable()]


def _load_speech(options: argparse.Namespace) -> tuple[VoicePipeline, Judge | None]:
    return load_pipeline(options), load_judge()


def detector() -> StreamingVad:
    """Tells speech from other sounds."""
    from audio.vad import StreamingVad

    return StreamingVad()
