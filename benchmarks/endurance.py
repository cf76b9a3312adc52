"""What a resident engine must bear: many replies in a row, stops at once, a host that is killed.

`python -m benchmarks.endurance [--engine NAME] [--model SPEC] [--replies N] [--json FILE]`.
Replies are short (1 to 8 tokens, every sampler in turn); each must equal the first one of its
kind to the bit, memory must be flat, and `stop` must keep the kernel from publishing more than
two tokens. In the end a second process is killed in the middle of a reply and the device's memory
must come back. `--model` takes what `app.py bench` does, shape:NAME for random weights.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import time
from typing import Any

import torch

from benchmarks.machine import machine
from benchmarks.results import result_file, write_json
from benchmarks.subject import load_subject
from engine import mailbox as mb
from engine.registry import engine_entry
from engine.sampling import SamplingParams
from engine.setup import best_device

_SAMPLERS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 0.9, "top_p": 0.9, "seed": 4},
    {"temperature": 0.9, "top_k": 40, "min_p": 0.02, "repetition_penalty": 1.1, "seed": 5},
)
_STOPS = 50
_GIVE_BACK_TIMEOUT_S = 30.0


def replies(engine: Any, prompt: list[int], count: int) -> dict[str, Any]:
    """`count` short replies: seconds, replies unlike the first of their kind, bytes kept."""
    expected: dict[tuple[int, int], list[int]] = {}
    unlike, start, kept = 0, time.monotonic(), 0
    cache = engine.model.new_cache(len(prompt) + 16)
    for number in range(count):
        kind = (number % len(_SAMPLERS), number % 8 + 1)
        params = SamplingParams(**_SAMPLERS[kind[0]], max_tokens=kind[1])
        ids = [token.id for token in engine.decode(cache, prompt, params)]
        cache.truncate(0)
        unlike += ids != expected.setdefault(kind, ids) or len(ids) != kind[1]
        if number == min(count // 10, 200):
            kept = _allocated()
    seconds = time.monotonic() - start
    return {
        "replies": count,
        "unlike_the_first": unlike,
        "seconds": round(seconds, 1),
        "bytes_kept": _allocated() - kept,
    }


def stops(engine: Any, prompt: list[int]) -> dict[str, Any]:
    """Tokens that the engine published after `stop` was called, and how long until it was idle."""
    late, idle_ms = [], []
    for number in range(_STOPS):
        cache = engine.model.new_cache(len(prompt) + 600)
        run = engine.decode(cache, prompt, SamplingParams(max_tokens=512))
        for _ in range(number % 7 + 1):
            next(run)
        seen, start = int(engine.resident.words[mb.PUBLISHED]), time.perf_counter()
        run.stop()
        idle_ms.append((time.perf_counter() - start) * 1e3)
        late.append(int(engine.resident.words[mb.PUBLISHED]) - seen)
    return {
        "stops": _STOPS,
        "tokens_after_stop_most": max(late),
        "stop_to_idle_ms": round(statistics.median(idle_ms), 2),
    }


def killed_host(name: str, spec: str) -> dict[str, Any]:
    """Kill a process in the middle of a reply; seconds until its device memory is free again."""
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=_talk, args=(name, spec, started), daemon=True)
    before = _free()
    process.start()
    if not started.wait(180):
        process.kill()
        return {"killed_mid_reply": False}
    during = _free()
    os.kill(process.pid or 0, signal.SIGKILL)
    start = time.monotonic()
    while _free() < before - 64e6 and time.monotonic() - start < _GIVE_BACK_TIMEOUT_S:
        time.sleep(0.05)
    process.join(10)
    return {
        "killed_mid_reply": True,
        "held_bytes": before - during,
        "free_again_after_s": round(time.monotonic() - start, 2),
        "free_again": _free() >= before - 64e6,
    }


def _talk(name: str, spec: str, started: Any) -> None:
    subject = load_subject(spec, best_device())
    engine = engine_entry(name).build(subject.model)
    cache = subject.model.new_cache()
    run = engine.decode(cache, subject.prompt(32), SamplingParams(max_tokens=10**6))
    for number, _ in enumerate(run):
        if number == 5:
            started.set()


def _allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _free() -> int:
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0


def main() -> None:
    """Print the figures, and a JSON line last; exit code 1 when something did not hold."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--engine", default="persistent-triton")
    arguments.add_argument("--model", default="shape:smollm2-135m")
    arguments.add_argument("--replies", type=int, default=10_000)
    arguments.add_argument("--json", type=result_file)
    arguments.add_argument("--commit")
    options = arguments.parse_args()
    subject = load_subject(options.model, best_device())
    engine: Any = engine_entry(options.engine).build(subject.model)
    prompt = subject.prompt(16)
    result: dict[str, Any] = {
        "benchmark": "endurance",
        "engine": options.engine,
        "model": options.model,
        "machine": machine(subject.model.device, 0, options.commit),
        **replies(engine, prompt[:1], options.replies),  # one token: no prefill between them
        **stops(engine, prompt),
    }
    engine.close()
    result |= killed_host(options.engine, options.model)
    print(json.dumps(result))
    if options.json:
        write_json(options.json, result)
    held = not result["unlike_the_first"] and result["tokens_after_stop_most"] <= 2
    raise SystemExit(0 if held and result["killed_mid_reply"] else 1)


if __name__ == "__main__":
    main()
