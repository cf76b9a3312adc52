"""What the decode core costs, beside transformers' own generate on the same weights.

`python -m benchmarks.decode_core [--json FILE]`: loading time; tokens/s of the eager engine and of
transformers in turn (A B A B, medians) in one process with the same dtype and threads, after
checking that both give the same greedy text; memory after 5 and after 50 turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from typing import Any

import psutil
import torch
from transformers import LlamaForCausalLM

from assets.resolver import resolve
from benchmarks.results import result_file, write_json
from benchmarks.rivals import transformers_twin
from engine.conversation import Conversation
from engine.eager import EagerEngine
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.setup import DEFAULT_MODEL, best_device
from engine.weights import load_model

PROMPT = "Explain in a few sentences how a lighthouse works and why it was useful to sailors."
NEW_TOKENS = 128
ROUNDS = 5


def eager_run(engine: EagerEngine, ids: list[int]) -> tuple[list[int], float]:
    """(greedy tokens, seconds from call to last token)."""
    cache = engine.model.new_cache(len(ids) + NEW_TOKENS)
    start = time.perf_counter()
    run = engine.decode(cache, ids, SamplingParams(max_tokens=NEW_TOKENS))
    tokens = [token.id for token in run]
    return tokens, time.perf_counter() - start


def transformers_run(twin: LlamaForCausalLM, ids: list[int]) -> tuple[list[int], float]:
    """The same through `generate` with its default (dynamic) cache."""
    prompt = torch.tensor([ids], device=twin.device)
    start = time.perf_counter()
    with torch.inference_mode():
        out = twin.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=True)
    tokens = out[0, len(ids) :].tolist()
    return tokens, time.perf_counter() - start


def compare(model: Model, ids: list[int]) -> dict[str, Any]:
    """Both sides in turn. Refuses to report speeds when float32 texts differ."""
    engine, twin = EagerEngine(model, os.cpu_count()), transformers_twin(model)
    mine, _ = eager_run(engine, ids)
    theirs, _ = transformers_run(twin, ids)
    same = sum(a == b for a, b in zip(mine, theirs, strict=True))
    if model.dtype == torch.float32 and same != NEW_TOKENS:
        raise SystemExit(f"gate red: only {same} of {NEW_TOKENS} greedy tokens are the same")
    times: dict[str, list[float]] = {"eager": [], "transformers": []}
    for _ in range(ROUNDS):
        times["eager"].append(eager_run(engine, ids)[1])
        times["transformers"].append(transformers_run(twin, ids)[1])
    figures: dict[str, Any] = {
        name: {
            "tokens_per_s": round(NEW_TOKENS / statistics.median(seconds), 2),
            "spread": [round(NEW_TOKENS / s, 2) for s in (max(seconds), min(seconds))],
        }
        for name, seconds in times.items()
    }
    figures["speedup"] = round(
        statistics.median(times["transformers"]) / statistics.median(times["eager"]), 3
    )
    figures["same_greedy_tokens"] = f"{same}/{NEW_TOKENS}"
    return figures


def memory_over_turns(model: Model) -> dict[str, float]:
    """Resident megabytes after 5 and after 50 turns of one conversation."""
    engine, conversation, found = EagerEngine(model, os.cpu_count()), Conversation(model, 1024), {}
    for turn in range(1, 51):
        for _ in conversation.reply(engine, f"Name a thing that is number {turn}.", _short()):
            pass
        if turn in (5, 50):
            found[f"after_{turn}_turns_mb"] = round(psutil.Process().memory_info().rss / 1e6, 1)
    return found


def _short() -> SamplingParams:
    return SamplingParams(max_tokens=24)


def main() -> None:
    """Print one table and, last, one JSON line."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", type=result_file, help="also write the result here")
    options = arguments.parse_args()
    path = resolve(DEFAULT_MODEL)
    load_model(path)  # the file is in the page cache from here on
    start = time.perf_counter()
    model = load_model(path, best_device())
    result: dict[str, Any] = {
        "benchmark": "decode_core",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {best_device()}",
        "torch": torch.__version__,
        "prompt_tokens": 0,
        "new_tokens": NEW_TOKENS,
        "rounds": ROUNDS,
        "load_s": round(time.perf_counter() - start, 3),
    }
    ids = model.tokenizer.encode(model.tokenizer.render([{"role": "user", "content": PROMPT}]))
    result["prompt_tokens"] = len(ids)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        result[name] = compare(load_model(path, best_device(), dtype), ids)
        print(name, json.dumps(result[name]))
    result["memory"] = memory_over_turns(model)
    print("load", result["load_s"], "s; memory", json.dumps(result["memory"]))
    line = json.dumps(result)
    if options.json:
        write_json(options.json, result)
    print(line)


if __name__ == "__main__":
    main()
