"""The commands of `app.py` as a terminal shows them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from engine.errors import UnpausedError
from engine.registry import engine_entry

if TYPE_CHECKING:
    from engine.base import DecodeEngine
    from engine.metrics import ReplyMetrics
    from engine.models.base import Model
    from engine.sampling import SamplingParams


def chat(options: argparse.Namespace) -> int:
    """Answer one line of text: the reply on standard output, its figures on standard error."""
    params = _params(options)
    model, engine = _open(options)
    from engine.bandwidth import read_bandwidth
    from engine.conversation import Conversation

    reply = Conversation(model, options.context).reply(engine, options.text, params)
    for delta in reply:
        if not options.json:
            print(delta.text, end="", flush=True)
    metrics = reply.metrics()
    result = _result(reply.text, metrics)
    share = metrics.bandwidth_share(read_bandwidth(str(model.device)))
    result["bandwidth_share"] = None if share is None else round(share, 4)
    _print(options, result, metrics)
    return 0


def turn(options: argparse.Namespace) -> int:
    """One voice turn from a file: what was heard, the reply, the stages until it is audible."""
    raise UnpausedError("not wired yet")


def page(options: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    raise UnpausedError("not wired yet")


def _params(options: argparse.Namespace) -> SamplingParams:
    from engine.sampling import SamplingParams

    return SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        max_tokens=options.max_tokens,
    )


def _open(options: argparse.Namespace, speaking: bool = False) -> tuple[Model, DecodeEngine]:
    engine_entry(options.engine)  # a misspelt name is said before gigabytes are fetched
    from assets.console import ConsoleProgress
    from engine.setup import open_engine, open_model

    with ConsoleProgress() as progress:
        model = open_model(options.model, progress)
    return model, open_engine(options.engine, model, speaking)


def _result(reply: str, metrics: ReplyMetrics) -> dict[str, Any]:
    """The JSON of a command: the reply, then every figure."""
    figures = metrics.as_dict()
    stages = [
        {"name": "prefill", "ms": figures["ttft_ms"]},
        {"name": "decode", "ms": _decode_ms(metrics)},
    ]
    return {"reply": reply.strip(), **figures, "stages": stages}


def _decode_ms(metrics: ReplyMetrics) -> float:
    return round(float(metrics.itl_ms().sum()), 3)


def _print(options: argparse.Namespace, result: dict[str, Any], metrics: ReplyMetrics) -> None:
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return
    print()
    print(_summary(result), file=sys.stderr)


def _summary(result: dict[str, Any]) -> str:
    def number(value: float | None, unit: str) -> str:
        return "-" if value is None else f"{value:,.1f} {unit}"

    tpot = result["tpot_ms"]
    return (
        f"{result['engine']} · {result['model']} · {result['tokens']} tokens · "
        f"{number(result['tokens_per_s'], 'tokens/s')} · TTFT {number(result['ttft_ms'], 'ms')} · "
        f"TPOT p50 {number(tpot['p50'], 'ms')}, p99 {number(tpot['p99'], 'ms')}"
    )
