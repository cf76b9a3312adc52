"""The commands of `app.py` as a terminal shows them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UnpausedError
from engine.registry import ENGINES, engine_entry

if TYPE_CHECKING:
    import numpy as np

    from audio.pipeline import VoicePipeline
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.metrics import ReplyMetrics
    from engine.models.base import Model
    from engine.sampling import SamplingParams
    from ui.services import Judge

MAX_JUDGE_MS = 150.0  # on a slower processor its verdict would come after the words


def chat(options: argparse.Namespace) -> int:
    """Answer one line of text: the reply on standard output, its figures on standard error."""
    from engine.conversation import Conversation, check_text

    params = _params(options)
    check_text(options.text)
    model, engine = _open(options)
    reply = Conversation(model, options.context).reply(engine, options.text, params)
    for delta in reply:
        if not options.json:
            print(delta.text, end="", flush=True)
    if not options.json:
        print(flush=True)
    metrics = reply.metrics()
    result = {"reply": reply.text.strip(), **metrics.as_dict()}
    decode_ms = round(float(metrics.itl_ms().sum()), 3)
    result["stages"] = _stages(("prefill", result["ttft_ms"]), ("decode", decode_ms))
    result["bandwidth_share"] = _bandwidth_share(metrics, model)
    _finish(options, result)
    return 0


def turn(options: argparse.Namespace) -> int:
    """One voice turn from a file: what was heard, the reply, the stages until it is audible."""
    from audio.endpointing import listen
    from audio.frames import read_audio, write_wav
    from audio.vad import StreamingVad

    params = _params(options)
    samples = read_audio(options.audio)
    _check_writable(options.out, options.audio)
    heard = listen(samples, StreamingVad().probability)
    outcome = _Outcome()
    if heard is not None:
        model, engine = _open(options, speaking=True)
        pipeline, conversation = _pipeline(), _conversation(options, model, engine)
        for event in pipeline.voice_turn(
            heard.samples, conversation, engine, params, heard.endpointing_ms
        ):
            outcome.take(event, show=not options.json)
    result = outcome.result(options)
    if options.out and outcome.speech:
        write_wav(options.out.resolve(), outcome.joined(), outcome.rate_hz)
    _finish(options, result)
    return 0


def page(options: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    from assets.console import ConsoleProgress
    from assets.resolver import resolve
    from audio.vad import StreamingVad
    from engine.conversation import check_context
    from engine.sampling import SamplingParams
    from engine.setup import locate_model, open_engine
    from ui.access import Access
    from ui.page import check_port, launch
    from ui.services import Lazy, Services

    engine_entry(options.engine)
    check_port(options.host, options.port)
    access = Access.read(
        options.share, options.auth, options.api_key, options.host, os.environ
    )
    check_context(options.context)
    with ConsoleProgress() as progress:
        name, path = locate_model(options.model, progress)
        for role in ("stt", "voice"):
            resolve(role, progress)
    model = Lazy(lambda: _load(options, name, path))
    engines = {
        engine: Lazy(lambda engine=engine: open_engine(engine, model(), speaking=True))  # type: ignore[misc]
        for engine in ENGINES
    }
    services = Services(
        model_name=name,
        engines=list(ENGINES.values()),
        default_engine=options.engine,
        params=SamplingParams(repetition_penalty=1.1),  # as the commands' default
        make_engine=lambda engine: engines[engine](),
        make_conversation=lambda: _conversation(options, model(), engines[options.engine]()),
        make_pipeline=_pipeline,
        make_vad=StreamingVad,
        make_judge=_judge,
    )
    launch(services, options.host, options.port, access)
    return 0


@dataclass
class _Outcome:
    """What a voice turn has produced so far."""

    transcript: str = ""
    reply: str = ""
    metrics: ReplyMetrics | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)
    speech: list[np.ndarray] = field(default_factory=list)  # int16 [n] each
    rate_hz: int = 0

    def take(self, event: object, show: bool) -> None:
        from audio.pipeline import Delta, Speech, Transcribed, TurnDone, TurnFailed

        match event:
            case Transcribed():
                self.transcript = event.text
                if show and event.text:
                    print(f"You: {event.text}\nUnpaused: ", end="", flush=True)
            case Delta() if show:
                print(event.text, end="", flush=True)
            case Speech():
                self.speech.append(event.pcm)
                self.rate_hz = event.rate_hz
            case TurnDone():
                self.reply, self.metrics = event.reply.strip(), event.metrics
                self.stages = _stages(*((stage.name, stage.ms) for stage in event.stages))
                if show and self.transcript:
                    print()
            case TurnFailed():
                raise UnpausedError(event.message)

    def result(self, options: argparse.Namespace) -> dict[str, Any]:
        from engine.metrics import ReplyMetrics

        metrics = self.metrics or ReplyMetrics(engine=options.engine, model=options.model)
        return {
            "transcript": self.transcript,
            "reply": self.reply,
            **metrics.as_dict(),
            "stages": self.stages,
            "first_audio_ms": round(sum(s["ms"] for s in self.stages), 3) if self.speech else None,
        }

    def joined(self) -> np.ndarray:
        import numpy as np

        return np.concatenate(self.speech)


def _params(options: argparse.Namespace) -> SamplingParams:
    from engine.sampling import SamplingParams

    return SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        max_tokens=options.max_tokens,
    )


def _open(options: argparse.Namespace, speaking: bool = False) -> tuple[Model, DecodeEngine]:
    engine_entry(options.engine)  # a misspelt name is said before gigabytes are fetched
    from assets.console import ConsoleProgress
    from engine.conversation import check_context
    from engine.setup import locate_model, open_engine

    check_context(options.context)
    with ConsoleProgress() as progress:
        name, path = locate_model(options.model, progress)
    model = _load(options, name, path)
    return model, open_engine(options.engine, model, speaking)


def _bandwidth_share(metrics: ReplyMetrics, model: Model) -> float | None:
    """Of the bandwidth measured here and now; None where there is no memory to measure with."""
    from engine.bandwidth import read_bandwidth

    try:
        share = metrics.bandwidth_share(read_bandwidth(str(model.device)))
    except (MemoryError, RuntimeError):  # the reply is there and is worth more than this figure
        return None
    return None if share is None else round(share, 4)


def _load(options: argparse.Namespace, name: str, path: Path) -> Model:
    """The model, with a word if it has less room than was asked for."""
    from engine.conversation import DEFAULT_CONTEXT
    from engine.setup import open_model

    model = open_model(name, path)
    room = model.config.max_positions
    if options.context > room and options.context != DEFAULT_CONTEXT:
        line = f"{name} has room for {room:,} tokens: --context is lowered to that"
        print(line, file=sys.stderr, flush=True)
    return model


def _conversation(options: argparse.Namespace, model: Model, engine: DecodeEngine) -> Conversation:
    from engine.conversation import Conversation

    # Thinking would be silence before the first word; models without it ignore the option.
    conversation = Conversation(model, options.context, enable_thinking=False)
    conversation.warm(engine)
    return conversation


def _pipeline() -> VoicePipeline:
    from assets.console import ConsoleProgress
    from assets.resolver import resolve
    from audio.pipeline import VoicePipeline
    from audio.stt import Transcriber
    from audio.tts import Synthesizer

    with ConsoleProgress() as progress:
        transcriber = Transcriber(resolve("stt", progress), threads=os.cpu_count() or 1)
        pipeline = VoicePipeline(transcriber, Synthesizer(resolve("voice", progress)))
    pipeline.warm()
    return pipeline


def _judge() -> Judge | None:
    """The model that hears whether a speaker has finished; None where it cannot be had or run."""
    from assets.resolver import resolve
    from audio.smart_turn import SmartTurn

    try:
        judge = SmartTurn(resolve("turn"))
    except UnpausedError as error:
        print(f"unpaused: the end of a turn is told by punctuation: {error}", file=sys.stderr)
        return None
    return judge.probability if judge.warm_ms() <= MAX_JUDGE_MS else None


def _check_writable(path: Path | None, question: Path) -> None:
    """Say before the work, not after it, that its result could not be kept."""
    if path is None:
        return
    if path.is_dir() or not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise UnpausedError(f"cannot write {path}: name a file in a folder that can be written")
    if path.exists() and not path.is_file():
        raise UnpausedError(f"cannot write {path}: it is no plain file")
    if path.exists() and path.samefile(question):
        raise UnpausedError(f"the reply would replace the question {path}: name another file")


def _stages(*named: tuple[str, float | None]) -> list[dict[str, Any]]:
    return [{"name": name, "ms": None if ms is None else round(ms, 3)} for name, ms in named]


def _finish(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """The last line: JSON on standard output, or the figures in words on standard error."""
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return
    if result.get("transcript") == "":
        print("No speech was heard.", file=sys.stderr)
        return
    stages = " + ".join(
        f"{stage['name']} {_number(stage['ms'], 'ms')}" for stage in result["stages"]
    )
    if result.get("first_audio_ms") is not None:
        stages += f" = {_number(result['first_audio_ms'], 'ms')} to first audio"
    print(_summary(result), stages, sep="\n", file=sys.stderr)


def _summary(result: dict[str, Any]) -> str:
    tpot = result["tpot_ms"]
    parts = (
        result["engine"],
        result["model"],
        f"{result['tokens']} tokens",
        _number(result["tokens_per_s"], "tokens/s"),
        f"TTFT {_number(result['ttft_ms'], 'ms')}",
        f"TPOT p50 {_number(tpot['p50'], 'ms')}, p99 {_number(tpot['p99'], 'ms')}",
    )
    return " · ".join(parts)


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,.1f} {unit}"
