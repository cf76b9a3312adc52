"""What a pass of several tokens costs beside one of one token, captured, at a model's full shape.

`python -m benchmarks.captured_pass [shape ...] [--context N] [--json FILE]`: random weights, since
speed does not depend on them. A pass is verified as in a reply, n-gram look-up included. Needs a
GPU; no figure of it is published yet.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from benchmarks.results import result_file, write_json
from benchmarks.shapes import SHAPES, random_model
from engine.gpu import gpu_reason, launches_dependently
from engine.kv_cache import KVCache
from engine.sampling import SamplingParams
from kernels.column_ops import ColumnKernels
from kernels.filters import Filters
from kernels.tuning import tuning_for

WIDTHS = (1, 2, 4, 8)
SAMPLERS = {
    "greedy": (Filters(), SamplingParams()),
    "top_p": (Filters(top_p=True), SamplingParams(temperature=0.8, top_p=0.9)),
}
_ROUNDS, _PASSES = 5, 40


def pass_us(kernels: ColumnKernels, cache: KVCache, width: int, sampler: str) -> float:
    """Microseconds of one captured pass of `width`, the median of a few means."""
    filters, params = SAMPLERS[sampler]
    kernels.begin(cache, 0, params)
    kernels.verify(width, filters)  # compiled before it is captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.verify(width, filters)
    times = []
    for _ in range(_ROUNDS):
        kernels.begin(cache, 0, params)
        graph.replay()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(_PASSES):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / _PASSES)
    return statistics.median(times)


def measure(name: str, context: int) -> dict[str, dict[int, float]]:
    """Microseconds by sampler and width of shape `name` behind `context` tokens."""
    model = random_model(name, "cuda")
    tuning = tuning_for(model.config, torch.cuda.get_device_name())
    kernels = ColumnKernels(
        model, tuning, launches_dependently(model.device), widest=max(WIDTHS), ngram=True
    )
    cache = model.new_cache(context + _PASSES * max(WIDTHS) + max(WIDTHS) + 1)
    cache.k.normal_(0, 0.5)
    cache.v.normal_(0, 0.5)
    cache.token_ids = [0] * context
    return {
        sampler: {width: pass_us(kernels, cache, width, sampler) for width in WIDTHS}
        for sampler in SAMPLERS
    }


def main() -> None:
    """Measure the shapes asked for; a line each, and the cost beside one token's."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("shapes", nargs="*", default=["llama-3.2-1b"])
    arguments.add_argument("--context", type=int, default=600)
    arguments.add_argument("--json", type=result_file)
    options = arguments.parse_args()
    unknown = [name for name in options.shapes if name not in SHAPES]
    reason = f"no shape {unknown[0]}: {', '.join(SHAPES)}" if unknown else gpu_reason()
    if reason:
        arguments.error(reason)
    found = {}
    for name in options.shapes:
        found[name] = measure(name, options.context)
        for sampler, by_width in found[name].items():
            costs = [f"{w}: {us:.1f} us ({us / by_width[1]:.2f}x)" for w, us in by_width.items()]
            print(f"{name}, context {options.context}, {sampler}: {', '.join(costs)}", flush=True)
        torch.cuda.empty_cache()
    if options.json:
        content = {"gpu": torch.cuda.get_device_name(), "context": options.context, "us": found}
        write_json(options.json, content)


if __name__ == "__main__":
    main()
