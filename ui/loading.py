"""From the command line's options to the parts of a turn: model, engine, conversation, voice.

Imports are late, so that a command loads what it needs and `--help` nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UnpausedError
from engine.files import check_writable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from audio.pipeline import VoicePipeline
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.models.base import Model
    from engine.sampling import SamplingParams
    from engine.setup import Drafting
    from ui.services import Judge, Lazy

MAX_JUDGE_MS = 150.0  # on a slower processor its verdict would come after the words


def sampling(options: argparse.Namespace) -> SamplingParams:
    """What the options say of sampling. Raises `UnpausedError`."""
    from engine.sampling import SamplingParams

    return SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        max_tokens=options.max_tokens,
    )


def open_model_and_engine(options: argparse.Namespace) -> tuple[Model, DecodeEngine]:
    """The model and the engine that the options name. Raises `UnpausedError`."""
    from engine.conversation import check_context
    from engine.setup import open_engine, open_speculation

    check_engine(options)
    check_context(options.context)
    name, path, drafting = locate_models(options)
    model = load_model(options, name, path)
    return model, open_engine(options.engine, model, speculation=open_speculation(drafting, model))


def check_engine(options: argparse.Namespace) -> str:
    """The name of the engine that the options stand for here.

    Raises `UnpausedError` for one that is not there or cannot draft as asked: said before
    gigabytes are fetched.
    """
    from engine.registry import concrete_name
    from engine.speculation import read_choice

    return concrete_name(options.engine, read_choice(options.speculate)[0])


def locate_models(options: argparse.Namespace) -> tuple[str, Path, Drafting | None]:
    """(name, files, what drafts) of the options' model, fetched where they are not here."""
    from assets.console import ConsoleProgress
    from engine.setup import locate_drafting, locate_model

    with ConsoleProgress() as progress:
        located = locate_model(options.model, progress)
        return *located, locate_drafting(options.speculate, located, progress)


def lazy_engines(
    names: Iterable[str], model: Callable[[], Model], drafting: Drafting | None, speaking: bool
) -> dict[str, Lazy[DecodeEngine]]:
    """Engines on `model`, each made when first used; those that cannot draft so do without."""
    from engine.registry import ENGINES
    from engine.setup import open_engine, open_speculation
    from ui.services import Lazy

    speculation = Lazy(lambda: open_speculation(drafting, model()))

    def make(name: str) -> DecodeEngine:
        drafts = drafting is not None and drafting.method in ENGINES[name].speculates()
        return open_engine(name, model(), speaking, speculation() if drafts else None)

    return {name: Lazy(partial(make, name)) for name in names}


def load_model(options: argparse.Namespace, name: str, path: Path) -> Model:
    """The model, with a word if it has less room than was asked for."""
    from engine.conversation import DEFAULT_CONTEXT
    from engine.setup import open_model

    model = open_model(name, path)
    room = model.config.max_positions
    if options.context > room and options.context != DEFAULT_CONTEXT:
        line = f"{name} has room for {room:,} tokens: --context is lowered to that"
        print(line, file=sys.stderr, flush=True)
    return model


def warm_conversation(
    options: argparse.Namespace, model: Model, engine: DecodeEngine
) -> Conversation:
    """A new conversation whose prompts' beginning is in the cache already."""
    from engine.conversation import Conversation

    # Thinking would be silence before the first word; models without it ignore the option.
    conversation = Conversation(model, options.context, enable_thinking=False)
    conversation.warm(engine)
    return conversation


def load_pipeline(options: argparse.Namespace) -> VoicePipeline:
    """Speech in and out as the options name them, warm. Raises `UnpausedError`."""
    from assets.console import ConsoleProgress
    from assets.speech import locate_stt, locate_voice
    from audio.pipeline import VoicePipeline
    from audio.stt import Transcriber
    from audio.tts import Synthesizer

    with ConsoleProgress() as progress:
        stt, voice = locate_stt(options.stt, progress), locate_voice(options.voice, progress)
    transcriber = Transcriber(stt, threads=os.cpu_count() or 1, language=options.language)
    pipeline = VoicePipeline(transcriber, Synthesizer(voice))
    pipeline.warm()
    return pipeline


def load_judge() -> Judge | None:
    """The model that hears whether a speaker has finished; None where it cannot be had or run."""
    from assets.resolver import resolve
    from audio.smart_turn import SmartTurn

    try:
        judge = SmartTurn(resolve("turn"))
    except UnpausedError as error:
        print(f"unpaused: the end of a turn is told by punctuation: {error}", file=sys.stderr)
        return None
    return judge.probability if judge.warm_ms() <= MAX_JUDGE_MS else None


def check_reply_path(path: Path | None, question: Path) -> None:
    """Say before the work, not after it, that its result could not be kept."""
    if path is None:
        return
    check_writable(path)
    if path.exists() and path.samefile(question):
        raise UnpausedError(f"the reply would replace the question {path}: name another file")
