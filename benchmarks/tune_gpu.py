"""Choose tile shapes for this GPU by measurement, one whole captured step at a time.

`python -m benchmarks.tune_gpu [shape ...] [--out FILE]`: coordinate descent over the candidates of
each stage, judged by the time of the whole step in a graph, since kernels overlap their
neighbours. Candidates are compiled beforehand by several processes. The result is merged into
FILE (kernels/tuning.json by default).
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import statistics
import time
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
from kernels.tuning import EARLY, LATE, MATVECS, Tile, Tuning, power_of_two, sizes, tuning_for

CONTEXT = 800
_REPEATS, _REPEAT_US = 3, 20_000
STAGES = ("trigger", "gate_up", "down", "qkv", "o", "head", "attention", "ahead", "trigger")
_WORKERS = 12


class _Compiler(StepKernels):
    """Compiles what it would launch."""

    def _run(
        self, kernel: Any, programs: int | tuple[int, int], *args: Any, **options: Any
    ) -> None:
        kernel.warmup(*args, grid=(1,), **options)


def tiles(kind: str, rows: int, columns: int) -> list[Tile]:
    """Candidates: 16 to 64 accumulators a thread, and enough programs to fill a GPU."""
    found = []
    for block_k in (128, 256, 512, 1024, 2048, 4096):
        for owned in (2, 4, 8, 16, 32):
            for warps in (2, 4, 8):
                held = owned * block_k / (32 * warps)
                fits = 16 <= held <= 64 and block_k <= power_of_two(columns)
                if fits and (kind == "head" or 60 <= rows // owned <= 3600):
                    found.append(Tile(owned, block_k, warps))
    return found


def attentions(config: ModelConfig) -> Iterator[tuple[int, int, int]]:
    """(splits, positions, warps)."""
    group = power_of_two(config.heads // config.kv_heads)
    for splits in (8, 16, 32, 64):
        for warps in (4, 8):
            for held in (8, 16, 32):
                block_n = held * 32 * warps // (group * power_of_two(config.head_dim))
                if 8 <= block_n <= 128 and 256 <= block_n * splits <= 2048:
                    yield splits, block_n, warps


def requests(config: ModelConfig, current: Tuning) -> list[Tuning]:
    """`current` with different amounts of gate/up weights requested during attention."""
    programs = config.kv_heads * current.splits
    return [
        replace(current, ahead=megabytes * 2**20 // 4 // programs // 64 * 64)
        for megabytes in (0, 2, 4, 8, 16)
    ]


def triggers(current: Tuning) -> list[Tuning]:
    """`current` with each kernel's trigger turned, one at a time."""
    turned = [replace(current, attention_trigger=EARLY + LATE - current.attention_trigger)]
    for kind in MATVECS:
        tile = getattr(current, kind)
        change: dict[str, Any] = {kind: replace(tile, trigger=EARLY + LATE - tile.trigger)}
        turned.append(replace(current, **change))
    return turned


def choices(config: ModelConfig, current: Tuning, stage: str) -> list[Tuning]:
    """`current` with each candidate of `stage`."""
    if stage == "attention":
        return [
            replace(current, splits=s, block_n=n, attention_warps=w, ahead=current.ahead)
            for s, n, w in attentions(config)
        ]
    if stage == "ahead":
        return requests(config, current)
    if stage == "trigger":
        return triggers(current)
    trigger = getattr(current, stage).trigger
    rows, columns = sizes(config)[stage]
    changed: list[dict[str, Any]] = [
        {stage: replace(tile, trigger=trigger)} for tile in tiles(stage, rows, columns)
    ]
    return [replace(current, **change) for change in changed]


def compile_all(job: tuple[str, list[Tuning], bool]) -> int:
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
    model: Model, tuning: Tuning, cache: KVCache, dependent: bool = True, about_us: float = 1000.0
) -> float:
    """Microseconds of one captured step at `CONTEXT`, the median of a few means."""
    kernels = StepKernels(model, tuning, dependent)
    kernels.bind(cache, 0, SamplingParams())
    kernels.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.step()
    times, replays = [], max(4, int(_REPEAT_US / about_us))
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


def compile_candidates(names: list[str], gpu: str, stages: list[str]) -> None:
    """Compile everything that tuning these shapes will try."""
    jobs = []
    for name in names:
        current = tuning_for(SHAPES[name], gpu)
        todo = [t for stage in stages for t in choices(SHAPES[name], current, stage)]
        jobs += [(name, todo[i :: 2 * _WORKERS], True) for i in range(2 * _WORKERS)]
    with multiprocessing.get_context("spawn").Pool(_WORKERS) as pool:
        pool.map(compile_all, jobs, chunksize=1)


def tune(name: str, gpu: str, rounds: int, stages: list[str]) -> dict[str, list[int]]:
    """The table's entries for shape `name`, having printed what each choice gained."""
    config = SHAPES[name]
    current = tuning_for(config, gpu)
    model = random_model(name, "cuda")
    cache = filled_cache(model)
    best_us = step_us(model, current, cache)
    print(f"{name}: {best_us:.1f} us with {astuple(current)}", flush=True)
    for _ in range(rounds):
        for stage in stages:
            timed = []
            for tuning in choices(config, current, stage):
                try:
                    timed.append((step_us(model, tuning, cache, about_us=best_us), tuning))
                except Exception as error:
                    print("skipped:", stage, str(error).splitlines()[:1])
            timed.sort(key=lambda pair: pair[0])
            us, tuning = timed[0]
            print("   ", [(round(u, 1), label(t, stage)) for u, t in timed[:4]])
            if stage == "trigger":  # all that helped alone, if they help together
                better = [t for u, t in timed if u < best_us]
                tuning = functools.reduce(_with_trigger, better, current)
                us = step_us(model, tuning, cache) if better else best_us
            if us < best_us:
                best_us, current = us, tuning
            print(f"{name}: {best_us:.1f} us, {stage}: {label(current, stage)}", flush=True)
    entries = {
        f"{kind} {rows}x{columns}": list(astuple(getattr(current, kind)))
        for kind, (rows, columns) in sizes(config).items()
    }
    key = f"attention {config.heads}/{config.kv_heads}x{config.head_dim}"
    entries[key] = list(astuple(current)[len(MATVECS) :])
    return entries


def as_table(content: dict[str, dict[str, list[int]]]) -> str:
    """JSON with one choice a line."""
    gpus = []
    for gpu, entries in content.items():
        lines = [f'  "{key}": {json.dumps(value)}' for key, value in sorted(entries.items())]
        gpus.append(f' "{gpu}": {{\n' + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(gpus) + "\n}\n"


def _with_trigger(current: Tuning, turned: Tuning) -> Tuning:
    """`current` with the one trigger in which `turned` differs from what it was made of."""
    changes: dict[str, Any] = {}
    for kind in MATVECS:
        changes[kind] = replace(
            getattr(current, kind),
            trigger=max(getattr(current, kind).trigger, getattr(turned, kind).trigger),
        )
    later = max(current.attention_trigger, turned.attention_trigger)
    return replace(current, **changes, attention_trigger=later)


def label(tuning: Tuning, stage: str) -> tuple[int, ...]:
    """What `tuning` says of one stage."""
    tile = getattr(tuning, stage, None)
    if stage == "trigger":
        return (*(getattr(tuning, kind).trigger for kind in MATVECS), tuning.attention_trigger)
    return astuple(tile) if isinstance(tile, Tile) else astuple(tuning)[len(MATVECS) :]


def main() -> None:
    """Tune the shapes asked for and write the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("shapes", nargs="*", default=list(SHAPES))
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--stages", nargs="*", choices=STAGES, default=list(STAGES))
    table = Path("kernels/tuning.json")
    arguments.add_argument("--out", type=Path, default=table)
    options = arguments.parse_args()
    gpu = torch.cuda.get_device_name()
    start = time.perf_counter()
    compile_candidates(options.shapes, gpu, options.stages)
    print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
    content = json.loads(table.read_text("utf-8"))
    for name in options.shapes:
        content.setdefault(gpu, {}).update(tune(name, gpu, options.rounds, options.stages))
        options.out.write_text(as_table(content), "utf-8")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
