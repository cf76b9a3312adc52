"""Every figure of a reply against its formula, worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.base import DraftCounts
from engine.conversation import Conversation
from engine.eager import EagerEngine
from engine.launches import count_launches
from engine.metrics import ReplyMetrics
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.speculation import Speculation
from tests.engine.scripted import ScriptedEngine

MS = 1_000_000  # nanoseconds


def metrics(*times_ms: float, **options: Any) -> ReplyMetrics:
    """Started at 1000 ms; tokens this long afterwards."""
    times_ns = [int((1000 + t) * MS) for t in times_ms]
    return ReplyMetrics(start_ns=1000 * MS, token_times_ns=times_ns, **options)


def test_before_the_first_token() -> None:
    figures = metrics(prompt_tokens=5).as_dict()
    assert figures["tokens"] == 0 and figures["ttft_ms"] is None
    assert figures["tpot_ms"] == {"p50": None, "p99": None, "max": None}
    assert figures["tokens_per_s"] is None and figures["prefill_tokens_per_s"] is None
    assert figures["launches_per_token"] is None
    assert metrics().bandwidth_share(1e9) is None


def test_one_token_has_a_ttft_and_no_tpot() -> None:
    figures = metrics(80.0).as_dict()
    assert figures["ttft_ms"] == 80.0 and figures["tokens"] == 1
    assert figures["tpot_ms"]["p50"] is None and figures["tokens_per_s"] is None
    assert metrics(80.0).bandwidth_share(1e9) is None


def test_latencies() -> None:
    reply = metrics(80.0, 90.0, 120.0, 140.0, 150.0)
    assert reply.itl_ms().tolist() == [10.0, 30.0, 20.0, 10.0]
    figures = reply.as_dict()
    assert figures["ttft_ms"] == 80.0
    # Sorted 10 10 20 30: the median lies between 10 and 20; p99 at rank 2.97, 0.97 of 20 to 30.
    assert figures["tpot_ms"] == {"p50": 15.0, "p99": 29.7, "max": 30.0}
    assert figures["tokens_per_s"] == pytest.approx(4 / 0.070, abs=1e-3)


def test_prefill() -> None:
    reply = metrics(80.0, prompt_tokens=50, cached_tokens=34)
    assert reply.prefill_tokens == 16
    assert reply.as_dict()["prefill_tokens_per_s"] == 16 / 0.080


def test_bytes_and_bandwidth() -> None:
    reply = metrics(
        *(10.0, 30.0, 50.0, 70.0),
        prompt_tokens=98,
        weight_bytes_per_token=1_000_000,
        kv_bytes_per_position=100,
    )
    assert reply.as_dict()["weight_bytes_per_token"] == 1_000_000
    assert reply.as_dict()["kv_bytes"] == (98 + 3) * 100  # the fourth token was not fed
    # On average 98 + 2 positions are held: 1,010,000 bytes in 20 ms are 50.5 MB/s.
    assert reply.bandwidth_share(101e6) == pytest.approx(0.5)


def test_launches() -> None:
    assert metrics(1.0, 2.0, launches=102).as_dict()["launches_per_token"] == 51.0


def test_figures_are_json_with_microseconds_at_most() -> None:
    reply = metrics(1 / 3, 2 / 3 + 0.1, 1.9, engine="eager", model="tiny")
    figures = json.loads(json.dumps(reply.as_dict()))
    assert figures["engine"] == "eager" and figures["model"] == "tiny"
    assert figures["ttft_ms"] == 0.333


def test_a_reply_of_a_conversation(long_llama: Model) -> None:
    """Tokens 1 ms apart, ten launches each."""
    chat = Conversation(long_llama)
    end = min(long_llama.tokenizer.stop_ids)
    engine = ScriptedEngine(long_llama, [[300, 301, 302, end]])
    stream = chat.reply(engine, "hello", SamplingParams())
    deltas = list(stream)
    figures = stream.metrics().as_dict()
    assert sum(delta.token is not None for delta in deltas) == figures["tokens"] == 4
    assert figures["ttft_ms"] == 1.0 and figures["tokens_per_s"] == 1000.0
    assert figures["tpot_ms"] == {"p50": 1.0, "p99": 1.0, "max": 1.0}
    assert figures["launches_per_token"] == 10.0
    assert figures["prompt_tokens"] == len(stream.prompt_ids) == figures["prefill_tokens"]
    assert figures["kv_bytes"] == chat.cache.length * chat.cache.bytes_per_position
    # Two layers, two heads of 16, keys and values, float32.
    assert chat.cache.bytes_per_position == 2 * 2 * 16 * 2 * 4


def test_without_drafts_nothing_is_said_of_them() -> None:
    reply = metrics(10.0, 20.0)
    assert reply.as_dict()["speculation"] is None
    assert reply.acceptance is None and reply.tokens_per_pass is None
    assert reply.pace_ms == 10.0


def test_several_tokens_of_a_pass_arrive_together() -> None:
    """Passes of 20 ms that gave 3, 1 and 2 tokens after the prompt's one."""
    reply = metrics(
        *(10.0, 30.0, 30.0, 30.0, 50.0, 70.0, 70.0),
        prompt_tokens=96,
        weight_bytes_per_token=1_000_000,
        kv_bytes_per_position=100,
        drafts=DraftCounts(passes=3, drafted=8, accepted=3),
    )
    figures = reply.as_dict()
    assert figures["speculation"] == {
        "passes": 3, "drafted": 8, "accepted": 3, "acceptance": 0.375, "tokens_per_pass": 2.0,
    }  # fmt: skip
    # Half of the six latencies are 0 and half are 20.
    assert figures["tpot_ms"]["p50"] == 10.0 and figures["tpot_ms"]["max"] == 20.0
    assert reply.pace_ms == 10.0 and figures["tokens_per_s"] == 100.0
    # A pass reads 1,000,000 bytes and 99.5 positions in 20 ms: 50,497,500 bytes a second.
    assert reply.bandwidth_share(50_497_500) == pytest.approx(1.0)


def test_nothing_drafted_is_no_share_of_nothing() -> None:
    figures = metrics(10.0, 20.0, drafts=DraftCounts(passes=1)).as_dict()
    assert figures["speculation"]["acceptance"] is None
    assert figures["speculation"]["tokens_per_pass"] == 1.0
    before = metrics(drafts=DraftCounts()).as_dict()["speculation"]
    assert before["tokens_per_pass"] is None


def test_hidden_tokens_count_in_what_was_drafted(long_llama: Model) -> None:
    engine, chat = (
        EagerEngine(long_llama, speculation=Speculation("ngram")),
        Conversation(long_llama),
    )
    chat.hidden_tokens = 20
    stream = chat.reply(engine, "hello hello hello hello", SamplingParams(max_tokens=30))
    seen = [stream.metrics().drafts for _ in stream]
    counts = stream.metrics().drafts
    assert counts is not None and all(one is not None for one in seen)
    # The first token of either run comes with its prompt.
    assert counts.passes + counts.accepted >= stream.metrics().tokens - 2
    assert counts.accepted <= counts.drafted
    before = stream.metrics()
    assert before.drafts is not stream.metrics().drafts  # a snapshot stays as it is


class Operations(TorchDispatchMode):
    """Names of the operations dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_launches_are_counted_and_views_are_not() -> None:
    def work() -> torch.Tensor:
        square = torch.ones(4, 4)  # one
        seen = square.view(2, 8)[:, 3:].T  # none: a view, a slice, a transpose
        return (seen + 1).sum()  # two

    assert count_launches(work, torch.device("cpu")) == 3


def test_launches_of_eager_are_those_of_a_step(long_llama: Model) -> None:
    engine, cache = EagerEngine(long_llama), long_llama.new_cache()
    engine.prefill(cache, [1, 2, 3])
    with Operations() as operations:
        engine.step(cache, [4]).argmax()
    names = operations.names
    # Queries, keys and values; output; gate and up; down; the head: what must at least be there.
    products = sum(name.split("::")[1] in ("mm", "addmm", "linear", "matmul") for name in names)
    assert products == 4 * long_llama.config.layers + 1
    assert products < engine.launches_per_step <= len(names)
    stream = Conversation(long_llama).reply(engine, "hello", SamplingParams(max_tokens=5))
    assert len(list(stream)) >= 5
    assert stream.metrics().as_dict()["launches_per_token"] == engine.launches_per_step
