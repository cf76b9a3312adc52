"""What only the resident CPU engine can be asked: stopping, idling, a busy neighbour, memory.

`python -m benchmarks.cpu_decode [--json FILE] [--rounds N] [--replies N] [--hog]`: first the gate
of the bench, then, timed as the bench does, TTFT and TPOT for a prompt of 97 tokens and 128 new
ones, on all cores and on one, from the file's blocks and widened to bfloat16; a prompt that
continues a cached one; stop latency; what an idle engine costs; how soon a process is gone.
`--replies` decodes that many short replies and compares memory and threads; `--hog` keeps one core
busy and measures again. llama.cpp runs only where the package `cyllama` is installed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from benchmarks.exit_time import exit_ms
from benchmarks.gate import Gate
from benchmarks.machine import cpu_name
from benchmarks.results import result_file, write_json
from benchmarks.rivals import open_rivals
from benchmarks.subject import Subject, load_subject
from benchmarks.timing import EngineSide, Side, figures, first_tokens, in_turn
from engine import leaving
from engine.bandwidth import read_bandwidth
from engine.cpu import PersistentCpuEngine
from engine.cpu_cores import physical_cores
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.setup import DEFAULT_MODEL

PROMPT_TOKENS, NEW_TOKENS, FOLLOW_UP_TOKENS = 97, 128, 24
GATE_POSITIONS = 64


def judged(
    subject: Subject, engine: PersistentCpuEngine, ids: list[int]
) -> tuple[Gate, dict[str, Any]]:
    """The gate, which `engine` has passed, and its figures; no speed where it is red."""
    gate = Gate.open(subject.model, ids, GATE_POSITIONS, NEW_TOKENS + 1, len(physical_cores()))
    verdict = gate.judge(engine)
    if not verdict.green:
        raise UnpausedError(f"gate red: {verdict.reason}")
    gate.release()
    return gate, gate.as_dict() | verdict.as_dict()


def contestants(
    subject: Subject, engine: PersistentCpuEngine, gate: Gate, ids: list[int]
) -> list[Side]:
    """`engine`, and whoever else is timed beside it."""
    model, threads = subject.model, len(physical_cores())
    one = PersistentCpuEngine(model, threads=1)
    plain = PersistentCpuEngine(Model("bfloat16", model.config, model.weights))
    sides: list[Side] = [
        EngineSide(engine, gate.cache, ids),
        EngineSide(one, gate.cache, ids, "persistent-cpu, 1 thread"),
        EngineSide(plain, gate.cache, ids, "persistent-cpu, bfloat16"),
        EngineSide(EagerEngine(model, threads), gate.cache, ids),
    ]
    rivals = open_rivals(["llama.cpp"], subject, ids, NEW_TOKENS, threads)
    return sides + [side for _, side in rivals if not isinstance(side, str)]


def measured(sides: Sequence[Side], rounds: int, ceiling: float) -> dict[str, Any]:
    """Every side's figures, in turn, beside `ceiling`, bytes/s."""
    replies = in_turn(sides, SamplingParams(max_tokens=NEW_TOKENS), rounds)
    ttfts = first_tokens(sides, rounds)
    return {
        side.name: figures(replies[side.name], ttfts[side.name], _read_bytes(side), ceiling)
        for side in sides
    }


def _read_bytes(side: Side) -> float | None:
    """What decoding one token has to read at least; None of another program."""
    if not isinstance(side, EngineSide):
        return None
    positions = PROMPT_TOKENS + NEW_TOKENS / 2
    kv_bytes = side.engine.model.new_cache(1).bytes_per_position
    return side.engine.weight_bytes_per_token + positions * kv_bytes


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
    taken_s = after.user + after.system - before.user - before.system
    return round(max(0.0, taken_s) / seconds, 4)


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


@contextmanager
def hog() -> Iterator[None]:
    """Another process keeps one core busy."""
    process = multiprocessing.get_context("spawn").Process(target=_be_busy, daemon=True)
    process.start()
    try:
        time.sleep(1.0)
        yield
    finally:
        process.terminate()
        process.join()


def _be_busy() -> None:
    while True:
        pass


def main() -> int:
    """Print a line for each figure and, last, one JSON line with all of them."""
    arguments = leaving.Parser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--json", type=result_file, help="also write the result here")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--replies", type=int, default=0, help="decode this many short replies")
    arguments.add_argument("--hog", action="store_true", help="measure beside a busy process too")
    options = arguments.parse_args()
    subject = load_subject(DEFAULT_MODEL, torch.device("cpu"))
    ids = subject.prompt(PROMPT_TOKENS)
    start = time.perf_counter()
    engine = PersistentCpuEngine(subject.model)
    started_s = time.perf_counter() - start
    gate, verdict = judged(subject, engine, ids)
    sides = contestants(subject, engine, gate, ids)
    ceiling = read_bandwidth("cpu", len(physical_cores()))
    result: dict[str, Any] = {
        "benchmark": "cpu_decode",
        "machine": cpu_name(),
        "threads": len(physical_cores()),
        "load_average": os.getloadavg()[0],
        "weights": engine.formats,
        "prompt_tokens": len(ids),
        "new_tokens": NEW_TOKENS,
        "engine_start_s": round(started_s, 2),
        "gate": verdict,
        "engines": measured(sides, options.rounds, ceiling),
        "read_gb_per_s": round(ceiling / 1e9, 2),
        "follow_up_ms": follow_up_ms(engine, ids),
        "stop_ms": stop_ms(engine, ids),
        "idle_share_of_a_core": idle_share(engine),
        "exit_ms": exit_ms(options.rounds),
    }
    if options.hog:
        with hog():
            kept = [side for side in sides if side.name != "eager"]
            result["with_a_hog"] = measured(kept, 3, ceiling)
    if options.replies:
        result["memory"] = memory_over(engine, ids, options.replies)
    for name, entry in {**result["engines"], **result}.items():
        if name != "engines":
            print(f"{name:28}", json.dumps(entry))
    if options.json:
        write_json(options.json, result)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    leaving.leave(leaving.run(main))
