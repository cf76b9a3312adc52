"""The commands of `app.py` as a terminal shows them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from engine.registry import ENGINES
from ui.figures import sum_of, summary
from ui.loading import (
    check_engine,
    check_reply_path,
    lazy_engines,
    load_judge,
    load_model,
    load_pipeline,
    locate_models,
    open_model_and_engine,
    sampling,
    warm_conversation,
)

if TYPE_CHECKING:
    from engine.metrics import ReplyMetrics
    from engine.models.base import Model


def chat(options: argparse.Namespace) -> int:
    """Answer one line of text: the reply on standard output, its figures on standard error."""
    from engine.conversation import Conversation, check_text

    params = sampling(options)
    check_text(options.text)
    model, engine = open_model_and_engine(options)
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
    import numpy as np

    from audio.endpointing import speech_end
    from audio.frames import read_audio, write_wav
    from audio.vad import StreamingVad
    from ui.file_turn import FileTurn, Outcome
    from ui.listen_assistant import load_assistant

    sampling(options)  # what is wrong with the options is said before anything is loaded
    options.engine = check_engine(options)
    samples = read_audio(options.audio)
    check_reply_path(options.out, options.audio)
    end, outcome = speech_end(samples, StreamingVad().probability), Outcome()
    if end is not None:
        file_turn = FileTurn(load_assistant(options), StreamingVad(), show=not options.json)
        outcome = file_turn.run(samples, end)
    if options.out and outcome.speech:
        write_wav(options.out.resolve(), np.concatenate(outcome.speech), outcome.rate_hz)
    _finish(options, outcome.as_dict(options))
    return 0


def page(options: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    from assets.console import ConsoleProgress
    from assets.speech import locate_stt, locate_voice
    from audio.vad import StreamingVad
    from engine.bandwidth import read_bandwidth
    from engine.conversation import check_context
    from engine.sampling import SamplingParams
    from ui.access import Access
    from ui.memory import keep_few_heaps
    from ui.page import check_port, launch
    from ui.services import Lazy, Services

    keep_few_heaps()
    options.engine = check_engine(options)
    check_port(options.host, options.port)
    access = Access.read(options.share, options.auth, options.api_key, options.host, os.environ)
    check_context(options.context)
    name, path, drafting = locate_models(options)
    with ConsoleProgress() as progress:
        locate_stt(options.stt, progress)
        locate_voice(options.voice, progress)
    model = Lazy(lambda: load_model(options, name, path))
    engines = lazy_engines(ENGINES, model, drafting, speaking=True)
    services = Services(
        model_name=name,
        engines=list(ENGINES.values()),
        default_engine=options.engine,
        params=SamplingParams(repetition_penalty=1.1),  # as the commands' default
        make_engine=lambda engine: engines[engine](),
        make_conversation=lambda: warm_conversation(options, model(), engines[options.engine]()),
        make_pipeline=lambda: load_pipeline(options),
        make_vad=StreamingVad,
        make_judge=load_judge,
        read_bandwidth=lambda: read_bandwidth(str(model().device)),
    )
    launch(services, options.host, options.port, access)
    return 0


def _bandwidth_share(metrics: ReplyMetrics, model: Model) -> float | None:
    """Of the bandwidth measured here and now; None where there is no memory to measure with."""
    from engine.bandwidth import read_bandwidth

    try:
        share = metrics.bandwidth_share(read_bandwidth(str(model.device)))
    except (MemoryError, RuntimeError):  # the reply is there and is worth more than this figure
        return None
    return None if share is None else round(share, 4)


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
    stages = sum_of(result["stages"], result.get("first_audio_ms"))
    print(summary(result), stages, sep="\n", file=sys.stderr)
