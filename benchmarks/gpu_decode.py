"""Decoding on one GPU: eager PyTorch, fused Triton kernels, and the same kernels as a graph.

`python -m benchmarks.gpu_decode [shape ...] [--smollm2 FILE] [--json FILE] [--commit ID]`.
Every engine passes the gate or the shape gets no figure: greedy tokens equal to a float32
reference's wherever its top-2 margin exceeds a tolerance (four times the RMS error of native
bfloat16 logits, measured here), and mean KL to its distributions no worse than native
bfloat16's. Then replies from a 600-token prompt up to context 1,000, engines in turn, all in one
process. Shapes have seeded random weights, except smollm2-135m with a FILE.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.shapes import SHAPES, random_model
from engine.bandwidth import read_bandwidth
from engine.base import DecodeEngine, Token
from engine.eager import EagerEngine
from engine.graph import GraphEngine
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.triton_engine import TritonEngine
from engine.weights import as_weights, load_model

PROMPT, CONTEXT = 600, 1000
_MARGIN = 4.0  # times the RMS error of native bfloat16 logits
_TEXT = "Write a long story about a lighthouse keeper who finds a message in a bottle."


def prompt_of(model: Model, real: bool) -> list[int]:
    """`PROMPT` token ids: text where the weights are real."""
    if not real:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(0, model.config.vocab, (PROMPT,), generator=generator).tolist()
    text = model.tokenizer.render([{"role": "user", "content": _TEXT}])
    ids = model.tokenizer.encode(text)
    story = load_story(model, ids)
    return (ids + story)[:PROMPT]


def load_story(model: Model, ids: list[int]) -> list[int]:
    """The model's own sampled reply: text it finds likely, to fill the prompt with."""
    run = EagerEngine(model).decode(
        model.new_cache(CONTEXT), ids, SamplingParams(temperature=0.8, seed=1, max_tokens=PROMPT)
    )
    return [token.id for token in run]


def in_float32(model: Model) -> Model:
    """The same weights, widened: the reference."""
    tensors = {name: tensor.float() for name, tensor in model.weights.tensors().items()}
    return Model(model.name, model.config, as_weights(tensors))


def gate(
    model: Model,
    engines: Sequence[TritonEngine],
    eager: EagerEngine,
    prompt: list[int],
    positions: int,
) -> dict[str, Any]:
    """Teacher-forced comparison over `positions` of the graph engine's own greedy reply."""
    params = SamplingParams(max_tokens=positions)
    replies = [[t.id for t in e.decode(model.new_cache(CONTEXT), prompt, params)] for e in engines]
    replies += [
        [t.id for t in engines[-1].decode(model.new_cache(CONTEXT), prompt, params)]
        for _ in range(2)
    ]
    reply = replies[-1]
    forced = [prompt[-1], *reply[:-1]]
    reference = EagerEngine(in_float32(model))
    cache = reference.model.new_cache(CONTEXT)
    expected = reference.logits(cache, [*prompt[:-1], *forced])[len(prompt) - 1 :]
    del reference, cache
    native_cache = model.new_cache(CONTEXT)
    eager.prefill(native_cache, prompt[:-1])
    native = torch.stack([eager.step(native_cache, [token_id]) for token_id in forced])
    tolerance = _MARGIN * float((native - expected).square().mean().sqrt())
    found: dict[str, Any] = {
        "positions": positions,
        "margin_tolerance": round(tolerance, 4),
        "eager": _against(expected, native, tolerance),
        "replies_identical": all(other == reply for other in replies),
    }
    green = found["replies_identical"]
    for engine in engines:
        cache = model.new_cache(CONTEXT)
        engine.prefill(cache, prompt[:-1])
        mine = _against(expected, engine.logits(cache, forced), tolerance)
        green &= mine["wrong_beyond_tolerance"] == 0
        green &= mine["mean_kl"] <= found["eager"]["mean_kl"]
        found[engine.name] = mine
    found["green"] = bool(green)
    return found


def _against(expected: torch.Tensor, logits: torch.Tensor, tolerance: float) -> dict[str, Any]:
    top = expected.topk(2).values
    clear = (top[:, 0] - top[:, 1]) > tolerance
    wrong = expected.argmax(-1) != logits.argmax(-1)
    divergence = torch.nn.functional.kl_div(
        logits.log_softmax(-1), expected.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    error = (logits - expected).norm() / expected.norm()
    return {
        "mean_kl": float(f"{divergence.mean():.3g}"),
        "relative_error": float(f"{error:.3g}"),
        "clear_positions": int(clear.sum()),
        "wrong_beyond_tolerance": int((clear & wrong).sum()),
        "other_token": int(wrong.sum()),
    }


def timed_reply(
    engine: DecodeEngine, prompt: list[int], params: SamplingParams
) -> tuple[np.ndarray, float, float]:
    """(inter-token latencies [us], launches per token, time to first token [ms])."""
    run = engine.decode(engine.model.new_cache(CONTEXT), prompt, params)
    tokens: list[Token] = list(run)
    times = np.array([token.time_ns for token in tokens], dtype=np.int64)
    ttft_ms = float(times[0] - run.start_ns) / 1e6
    return np.diff(times) / 1e3, run.launches / len(tokens), ttft_ms


def speeds(
    model: Model,
    engines: Sequence[DecodeEngine],
    prompt: list[int],
    ceiling: float,
    rounds: int,
    eager_tokens: int,
) -> dict[str, Any]:
    """Each engine's latencies over replies in turn, greedy and, once, as a chat samples."""
    found: dict[str, Any] = {}
    kinds: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 0.8, "top_p": 0.9}}
    for kind, sampling in kinds.items():
        replies: dict[str, list[tuple[np.ndarray, float, float]]] = {e.name: [] for e in engines}
        for _ in range(rounds if kind == "greedy" else 1):
            for engine in engines:
                tokens = eager_tokens if engine.name == "eager" else CONTEXT - PROMPT
                params = SamplingParams(**sampling, seed=1, max_tokens=tokens)
                replies[engine.name].append(timed_reply(engine, prompt, params))
        found[kind] = {name: _figures(model, rounds, ceiling) for name, rounds in replies.items()}
    return found


def _figures(
    model: Model, rounds: list[tuple[np.ndarray, float, float]], ceiling: float
) -> dict[str, Any]:
    kv_bytes = model.new_cache(1).bytes_per_position * (PROMPT + CONTEXT) / 2
    p50s = [float(np.percentile(itl_us, 50)) for itl_us, _, _ in rounds]
    p50_us = statistics.median(p50s)
    needed = model.weight_bytes_per_token + kv_bytes
    return {
        "tpot_us_p50": round(p50_us, 1),
        "tokens_a_round": len(rounds[0][0]) + 1,
        "tpot_us_p50_of_rounds": [round(p50, 1) for p50 in p50s],
        "tpot_us_p99": round(statistics.median(float(np.percentile(r[0], 99)) for r in rounds), 1),
        "tokens_per_s": round(1e6 / statistics.median(float(r[0].mean()) for r in rounds), 1),
        "launches_per_token": rounds[0][1],
        "ttft_ms": round(statistics.median(r[2] for r in rounds), 2),
        "terabytes_per_s": round(needed / p50_us / 1e6, 3),
        "share_of_read_ceiling": round(needed / (p50_us / 1e6) / ceiling, 3),
    }


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Gate, then speed, of one shape."""
    file = options.smollm2 if name == "smollm2-135m" else None
    model = load_model(file, "cuda", name=name) if file else random_model(name, "cuda")
    eager = EagerEngine(model)
    classes: dict[str, type[TritonEngine]] = {"triton": TritonEngine, "graph": GraphEngine}
    engines = [classes[engine](model) for engine in options.engines]
    prompt = prompt_of(model, bool(file))
    ceiling = read_bandwidth("cuda")
    result: dict[str, Any] = {
        "shape": name,
        "weights": "real" if file else "random, seed 0: for speed only",
        "dtype": "bfloat16",
        "weight_bytes_per_token": model.weight_bytes_per_token,
        "context": [PROMPT, CONTEXT],
        "read_ceiling_tb_per_s": round(ceiling / 1e12, 3),
        "gate": gate(model, engines, eager, prompt, options.gate),
    }
    if result["gate"]["green"]:
        everyone: list[DecodeEngine] = [eager, *engines]
        result["speed"] = speeds(
            model, everyone, prompt, ceiling, options.rounds, options.eager_tokens
        )
    return result


def machine(commit: str) -> dict[str, str]:
    """What the figures were measured on and with."""
    import triton

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=10,
    ).stdout.strip().partition("\n")[0]  # fmt: skip
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit,
    }


def main() -> None:
    """Print a table and, last, one JSON line."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("shapes", nargs="*", default=list(SHAPES))
    arguments.add_argument("--smollm2", type=Path, help="real weights, a GGUF file")
    arguments.add_argument("--json", type=Path, help="also write the result here")
    arguments.add_argument("--commit", default="unknown")
    arguments.add_argument("--engines", nargs="*", default=["triton", "graph"])
    arguments.add_argument("--gate", type=int, default=128, help="positions compared")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--eager-tokens", type=int, default=CONTEXT - PROMPT)
    options = arguments.parse_args()
    result: dict[str, Any] = {"benchmark": "gpu_decode", **machine(options.commit), "shapes": []}
    for name in options.shapes:
        measured = measure(name, options)
        result["shapes"].append(measured)
        _print(measured)
        if options.json:
            options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        gc.collect()
        torch.cuda.empty_cache()
    print(json.dumps(result))
    if not all(shape["gate"]["green"] for shape in result["shapes"]):
        raise SystemExit("gate red: no speed for that shape")


def _print(measured: dict[str, Any]) -> None:
    print(measured["shape"], "weights", measured["weights"], "gate", measured["gate"])
    for kind, engines in measured.get("speed", {}).items():
        for name, figures in engines.items():
            print(f"  {kind:18} {name:8} {figures}", flush=True)


if __name__ == "__main__":
    main()
