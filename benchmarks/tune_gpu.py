"""Choose tile shapes for this GPU by measurement, one whole captured step at a time.

`python -m benchmarks.tune_gpu [shape ...] [--out FILE]`: coordinate descent over the candidates of
each stage, judged by the time of the whole step in a graph, since kernels overlap their
neighbours. Candidates are compiled beforehand by several processes. The result is merged into
FILE (kernels/tuning.json by default).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import SHAPES, random_model
from engine.kv_cache import KVCache
from engine.models.base import Model, ModelConfig
from engine.sampling import SamplingParams
from engine.weights import as_weights, empty_weights
from kernels.ops import StepKernels
from kernels.tuning import MATVECS, Tile, Tuning, power_of_two, sizes, tuning_for

CONTEXT = 800
_REPLAYS, _REPEATS = 24, 3
_ACCUMULATORS = (8, 80)  # float32 a thread may hold in a matrix-vector product
_WORKERS = 12


class _Compiler(StepKernels):
    """Compiles what it would launch."""

    def _launch(self, kernel: Any, programs: int, warps: int, *args: Any, **constants: Any) -> None:
        kernel.warmup(
            *args, grid=(1,), **constants, PDL=self.dependent, num_warps=warps,
            launch_pdl=bool(self.dependent),
        )  # fmt: skip


def tiles(kind: str, rows: int, columns: int) -> list[Tile]:
    """Candidates that keep a thread's accumulators within bounds."""
    widest = power_of_two(columns)
    found = []
    for block_k in (128, 256, 512, 1024, 2048, 4096):
        for owned in (2, 4, 8, 16, 32):
            for warps in (2, 4, 8, 16):
                held = owned * block_k / (32 * warps)
                if block_k > widest or not _ACCUMULATORS[0] <= held <= _ACCUMULATORS[1]:
                    continue
                if 8 * 32 * warps > owned * block_k:  # less than 16 bytes a thread
                    continue
                programs = rows // owned
                if kind != "head" and not 60 <= programs <= 2600:
                    continue
                if warps == 16 and block_k < 2048:
                    continue
                found.append(Tile(owned, block_k, warps))
    return found


def attentions(config: ModelConfig) -> Iterator[tuple[int, int, int, int]]:
    """(splits, positions, warps, ahead)."""
    group = power_of_two(config.heads // config.kv_heads)
    for splits in (8, 16, 32, 64):
        if not 48 <= splits * config.kv_heads <= 520:
            continue
        for warps in (4, 8):
            for held in (32, 64):
                block_n = held * 32 * warps // (group * power_of_two(config.head_dim))
                if 16 <= block_n <= 128:
                    for megabytes in (0, 4, 8, 16, 24):
                        weights = megabytes * 2**20 // 4 // (splits * config.kv_heads) // 64 * 64
                        yield splits, block_n, warps, weights


def choices(config: ModelConfig, current: Tuning, stage: str) -> list[Tuning]:
    """`current` with each candidate of `stage`."""
    if stage == "attention":
        return [
            replace(current, splits=s, block_n=n, attention_warps=w, ahead=a)
            for s, n, w, a in attentions(config)
        ]
    rows, columns = sizes(config)[stage]
    return [replace(current, **{stage: tile}) for tile in tiles(stage, rows, columns)]


def compile_all(job: tuple[str, list[Tuning], int]) -> int:
    """Worker: compile every kernel of these tunings into Triton's cache on disk."""
    name, tunings, dependent = job
    config = replace(SHAPES[name], layers=1, max_positions=16)
    model = Model(name, config, as_weights(empty_weights(config, "cuda", torch.bfloat16)))
    for tuning in tunings:
        try:
            _Compiler(model, tuning, dependent).step()
        except Exception as error:  # a candidate that this GPU cannot run; timing skips it too
            print("skipped:", astuple(tuning), str(error).splitlines()[:1])
    return len(tunings)


def step_us(
    model: Model, tuning: Tuning, cache: KVCache, dependent: int = 2, replays: int = _REPLAYS
) -> float:
    """Microseconds of one captured step at `CONTEXT`, the median of a few means."""
    kernels = StepKernels(model, tuning, dependent)
    kernels.bind(cache, 0, SamplingParams())
    kernels.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.step()
    times = []
    for _ in range(_REPEATS):
        kernels.bind(cache, 0, SamplingParams())
        graph.replay()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / replays)
    return statistics.median(times)


def filled_cache(model: Model) -> KVCache:
    """A cache holding `CONTEXT` positions of small noise."""
    cache = model.new_cache(2 * CONTEXT)
    cache.k.normal_(0, 0.5)
    cache.v.normal_(0, 0.5)
    cache.token_ids = [0] * CONTEXT
    return cache


def tune(name: str, gpu: str, rounds: int, pool: Any) -> dict[str, list[int]]:
    """The table's entries for shape `name`, having printed what each choice gained."""
    config = SHAPES[name]
    current = tuning_for(config, gpu)
    stages = ["gate_up", "down", "head", "qkv", "o", "attention"]
    todo = [t for stage in stages for t in choices(config, current, stage)]
    jobs = [(name, todo[i::_WORKERS], 2) for i in range(_WORKERS)]
    pool.map(compile_all, jobs)
    model = random_model(name, "cuda")
    cache = filled_cache(model)
    best_us = step_us(model, current, cache)
    print(f"{name}: {best_us:.1f} us with {astuple(current)}", flush=True)
    for _ in range(rounds):
        for stage in stages:
            timed = []
            for tuning in choices(config, current, stage):
                try:
                    timed.append((step_us(model, tuning, cache), tuning))
                except Exception as error:
                    print("skipped:", stage, str(error).splitlines()[:1])
            us, tuning = min(timed, key=lambda pair: pair[0])
            if us < best_us:
                best_us, current = us, tuning
            picked = getattr(current, stage, None) or astuple(current)[5:]
            print(f"{name}: {best_us:.1f} us, {stage}: {picked}", flush=True)
    entries = {
        f"{kind} {rows}x{columns}": list(astuple(getattr(current, kind)))
        for kind, (rows, columns) in sizes(config).items()
    }
    key = f"attention {config.heads}/{config.kv_heads}x{config.head_dim}"
    entries[key] = [current.splits, current.block_n, current.attention_warps, current.ahead]
    return entries


def main() -> None:
    """Tune the shapes asked for and write the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("shapes", nargs="*", default=list(SHAPES))
    arguments.add_argument("--rounds", type=int, default=2)
    table = Path("kernels/tuning.json")
    arguments.add_argument("--out", type=Path, default=table)
    options = arguments.parse_args()
    with multiprocessing.get_context("spawn").Pool(_WORKERS) as pool:
        gpu = torch.cuda.get_device_name()
        content = json.loads(table.read_text("utf-8"))
        for name in options.shapes:
            content.setdefault(gpu, {}).update(tune(name, gpu, options.rounds, pool))
            options.out.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
