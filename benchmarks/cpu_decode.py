"""What only the resident CPU engine can be asked: stopping, idling, a busy neighbour, memory.

`python -m benchmarks.cpu_decode [--json FILE] [--rounds N] [--replies N] [--hog]`: first the
quality gate, then in turn (A B A B, medians) TTFT and TPOT for a prompt of 97 tokens and 128 new
ones; the share of the read bandwidth measured in the same process; a prompt that continues a
cached one; stop latency; what an idle engine costs; how soon a process is gone.
`--replies` decodes that many short replies and compares memory and threads;
`--hog` keeps one core busy and measures again. llama.cpp runs
only where the package `cyllama` is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from assets.resolver import resolve
from benchmarks.exit_time import exit_ms
from benchmarks.rivals import LlamaCppSide
from engine.bandwidth import read_bandwidth
from engine.base import DecodeEngine
from engine.cpu import PersistentCpuEngine
from engine.cpu_cores import physical_cores
from engine.eager import EagerEngine
from engine.models.base import Model
from engine.quality import quality
from engine.sampling import SamplingParams
from engine.setup import DEFAULT_MODEL
from engine.weights import load_model

PROMPT_TOKENS, NEW_TOKENS, FOLLOW_UP_TOKENS = 97, 128, 24
QUESTION = (
    "Explain how a lighthouse works, why it was useful to sailors, how its light was made before "
    "there was electricity, who looked after it during long winter storms, and why so many of "
    "them stand empty today. Begin with the oldest one that is known, and then go on to those "
    "that were built on rocks far out at sea, where everything had to be brought by boat."
)
_TAIL = 5  # tokens that close the question and open the answer
_COOL_DOWN_S = 0.2


@dataclass
class Timed:
    """One reply: time to first token, then each inter-token latency, in milliseconds."""

    ttft_ms: float
    itl_ms: np.ndarray
    tokens: list[int]


def prompt_of(model: Model) -> list[int]:
    """Exactly PROMPT_TOKENS ids, ending as a chat prompt ends."""
    text = model.tokenizer.render([{"role": "user", "content": QUESTION}])
    ids = model.tokenizer.encode(text)
    assert len(ids) >= PROMPT_TOKENS
    return [*ids[: PROMPT_TOKENS - _TAIL], *ids[-_TAIL:]]


def time_engine(engine: DecodeEngine, ids: list[int]) -> Timed:
    """A greedy reply by one of our engines, timed by its own clock."""
    cache = engine.model.new_cache(PROMPT_TOKENS + NEW_TOKENS)
    run = engine.decode(cache, ids, SamplingParams(max_tokens=NEW_TOKENS))
    tokens = list(run)
    times = np.array([run.start_ns, *(token.time_ns for token in tokens)]) / 1e6
    return Timed(times[1] - times[0], np.diff(times[1:]), [token.id for token in tokens])


def time_llama_cpp(side: LlamaCppSide) -> Timed:
    """The same through llama.cpp's C library, one call per token, with its default settings."""
    tokens, times = side.generate(NEW_TOKENS)
    milliseconds = np.array(times) * 1e3
    return Timed(milliseconds[1] - milliseconds[0], np.diff(milliseconds[1:]), tokens)


def figures(runs: list[Timed]) -> dict[str, Any]:
    """Medians over rounds of each round's figure, and the spread of the median TPOT."""
    p50 = [float(np.median(run.itl_ms)) for run in runs]
    rate = [(len(run.tokens) - 1) / run.itl_ms.sum() * 1e3 for run in runs]
    return {
        "ttft_ms": round(statistics.median(run.ttft_ms for run in runs), 1),
        "tpot_p50_ms": round(statistics.median(p50), 3),
        "tpot_p99_ms": round(
            statistics.median(float(np.percentile(run.itl_ms, 99)) for run in runs), 3
        ),
        "tokens_per_s": round(statistics.median(rate), 1),
        "spread_p50_ms": [round(min(p50), 3), round(max(p50), 3)],
    }


def side_by_side(
    sides: dict[str, Callable[[list[int]], Timed]], ids: list[int], rounds: int
) -> dict[str, Any]:
    """Every side in turn, `rounds` times, after one warm-up each."""
    for run in sides.values():
        run(ids)
    runs: dict[str, list[Timed]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            time.sleep(_COOL_DOWN_S)  # others' threads come to rest
            runs[name].append(run(ids))
    return {name: figures(found) for name, found in runs.items()}


def follow_up_ms(engine: PersistentCpuEngine, ids: list[int]) -> float:
    """TTFT of a turn that adds FOLLOW_UP_TOKENS to a cached prompt; the median of five."""
    times = []
    for _ in range(5):
        cache = engine.model.new_cache(512)
        engine.prefill(cache, ids)
        run = engine.decode(cache, ids[:FOLLOW_UP_TOKENS], SamplingParams(max_tokens=1))
        (token,) = run
        times.append((token.time_ns - run.start_ns) / 1e6)
    return round(statistics.median(times), 1)


def stop_ms(engine: PersistentCpuEngine, ids: list[int]) -> dict[str, float]:
    """From a stop out of another thread until every thread rests; over 20 replies."""
    times = []
    for count in range(20):
        cache = engine.model.new_cache(512)
        run = engine.decode(cache, ids[:8], SamplingParams(max_tokens=400))
        for _ in range(3 + count % 3):
            next(iter(run))
        asked: list[float] = []

        def stop(run: Any = run, asked: list[float] = asked) -> None:
            asked.append(time.perf_counter())
            run.stop()

        threading.Timer(0.003 * (count % 5), stop).start()
        for _ in run:
            pass
        times.append((time.perf_counter() - asked[0]) * 1e3)
    return {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}


def idle_share(engine: PersistentCpuEngine, seconds: float = 2.0) -> float:
    """Processor time of this process per second of an idle engine, from one second on."""
    assert engine.threads
    time.sleep(1.0)
    before, process = psutil.Process().cpu_times(), psutil.Process()
    time.sleep(seconds)
    after = process.cpu_times()
    return round((after.user + after.system - before.user - before.system) / seconds, 4)


def memory_over(engine: PersistentCpuEngine, ids: list[int], replies: int) -> dict[str, Any]:
    """Resident megabytes and threads after a tenth of `replies` and after all of them."""
    found: dict[str, Any] = {"replies": replies}
    for count in range(1, replies + 1):
        cache = engine.model.new_cache(64)
        run = engine.decode(cache, ids[:6], SamplingParams(max_tokens=3))
        if len(list(run)) != 3:
            raise SystemExit("a reply came out short")
        if count in (replies // 10, replies):
            found[f"after_{count}"] = {
                "rss_mb": round(psutil.Process().memory_info().rss / 1e6, 1),
                "threads": psutil.Process().num_threads(),
            }
    return found


def _hog() -> None:
    while True:
        pass


def with_a_hog(sides: dict[str, Callable[[list[int]], Timed]], ids: list[int]) -> dict[str, Any]:
    """`side_by_side` while another process keeps one core busy."""
    hog = multiprocessing.get_context("spawn").Process(target=_hog, daemon=True)
    hog.start()
    try:
        time.sleep(1.0)
        return side_by_side(sides, ids, 3)
    finally:
        hog.terminate()
        hog.join()


def gate(model: Model, engine: PersistentCpuEngine, ids: list[int]) -> dict[str, Any]:
    """The quality gate over a prompt and 64 tokens; no speed is printed when it is red."""
    reference = Model("float32", model.config, _as_float32(model))
    run = EagerEngine(reference).decode(reference.new_cache(), ids, SamplingParams(max_tokens=64))
    text = [*ids, *(token.id for token in run)]
    expected = EagerEngine(reference).logits(reference.new_cache(), text)
    found = quality(expected, engine.logits(engine.model.new_cache(), text))
    if not found.passed:
        raise SystemExit(f"gate red: {found}")
    return {"mean_kl": found.mean_kl, "changed": f"{found.changed}/{found.positions}",
            "changed_margin": found.changed_margin}  # fmt: skip


def _as_float32(model: Model) -> Any:
    assert model.checkpoint is not None
    return load_model(model.checkpoint.path, dtype=torch.float32).weights


def main() -> None:
    """Print a table and, last, one JSON line."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--json", type=Path, help="also write the result here")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--replies", type=int, default=0, help="decode this many short replies")
    arguments.add_argument("--hog", action="store_true", help="measure beside a busy process too")
    options = arguments.parse_args()
    path, threads = resolve(DEFAULT_MODEL), len(physical_cores())
    model = load_model(path)
    ids = prompt_of(model)
    start = time.perf_counter()
    engine = PersistentCpuEngine(model)
    result: dict[str, Any] = {
        "benchmark": "cpu_decode",
        "machine": f"{platform.machine()}, {os.cpu_count()} logical CPUs",
        "threads": threads,
        "load_average": os.getloadavg()[0],
        "weights": engine.formats,
        "prompt_tokens": len(ids),
        "new_tokens": NEW_TOKENS,
        "engine_start_s": round(time.perf_counter() - start, 2),
        "gate": gate(model, engine, ids),
    }
    one = PersistentCpuEngine(model, threads=1)
    eager = EagerEngine(model, threads)
    plain = PersistentCpuEngine(Model("bfloat16", model.config, model.weights))
    sides: dict[str, Callable[[list[int]], Timed]] = {
        "persistent-cpu": lambda ids: time_engine(engine, ids),
        "persistent-cpu, 1 thread": lambda ids: time_engine(one, ids),
        "persistent-cpu, bfloat16": lambda ids: time_engine(plain, ids),
        "eager": lambda ids: time_engine(eager, ids),
    }
    if importlib.util.find_spec("cyllama"):
        other = LlamaCppSide(str(path), ids, len(ids) + NEW_TOKENS, threads)
        sides["llama.cpp"] = lambda ids: time_llama_cpp(other)
    result["engines"] = side_by_side(sides, ids, options.rounds)
    bandwidth = read_bandwidth("cpu", threads)
    result["read_gb_per_s"] = round(bandwidth / 1e9, 2)
    for name, side in (("persistent-cpu", engine), ("persistent-cpu, bfloat16", plain)):
        entry = result["engines"][name]
        needed = side.weight_bytes_per_token + (len(ids) + NEW_TOKENS / 2) * (
            model.new_cache(1).bytes_per_position
        )
        entry["share_of_bandwidth"] = round(needed / (entry["tpot_p50_ms"] / 1e3 * bandwidth), 3)
    for name, entry in result["engines"].items():
        print(f"{name:28}", json.dumps(entry), flush=True)
    result["follow_up_ms"] = follow_up_ms(engine, ids)
    result["stop_ms"] = stop_ms(engine, ids)
    result["idle_share_of_a_core"] = idle_share(engine)
    result["exit_ms"] = exit_ms(options.rounds)
    if options.hog:
        chosen = {name: side for name, side in sides.items() if name != "eager"}
        result["with_a_hog"] = with_a_hog(chosen, ids)
    if options.replies:
        result["memory"] = memory_over(engine, ids, options.replies)
    rest = ("read_gb_per_s", "follow_up_ms", "stop_ms", "idle_share_of_a_core", "exit_ms",
            "with_a_hog", "memory", "gate", "engine_start_s")  # fmt: skip
    for name in rest:
        if name in result:
            print(f"{name:28}", json.dumps(result[name]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
