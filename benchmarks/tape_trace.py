"""Where a token's time goes in the tape kernel: a table, and a picture of one layer.

`python -m benchmarks.tape_trace SHAPE [--svg FILE]`. A measuring build of the kernel notes, block
by block and stage by stage of one token, when it began, had what the others owed it, had
multiplied, and had published, on the one clock of the GPU. Needs a GPU; random weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from benchmarks.shapes import SHAPES, random_model
from engine.persistent_tape import PersistentTapeEngine
from engine.sampling import SamplingParams

STAGES = ("QKV", "attention", "combine", "output", "gate/up", "down")
PROMPT, TOKENS, TRACED = 600, 150, 100
_BEGUN, _EXCHANGED, _MULTIPLIED, _PUBLISHED, _TAPE, _FIRST_SLOT, _OWN_DONE = range(7)
_COLOURS = {"exchange": "#d8d8d8", "multiply": "#3b7dd8", "publish": "#e0803a"}
_WIDTH, _ROW = 1200, 3  # pixels


def traced(engine: PersistentTapeEngine) -> tuple[float, np.ndarray]:
    """(median microseconds a token, int64 [blocks, stages, marks] of one token)."""
    model = engine.model
    cache, generator = model.new_cache(PROMPT + TOKENS + 1), torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab, (PROMPT,), generator=generator).tolist()
    engine.prefill(cache, ids[:-1])
    engine.kernel.trace_pass = TRACED
    tokens = list(engine.decode(cache, ids[-1:], SamplingParams(max_tokens=TOKENS)))
    times = np.diff(np.array([token.time_ns for token in tokens]))
    return float(np.median(times)) / 1e3, engine.kernel.timeline()


def layers_of(timeline: np.ndarray) -> np.ndarray:
    """float64 [blocks, layers, stages, marks]; NaN where a block has no part in a stage."""
    layers = timeline.shape[1] // len(STAGES)
    marks = timeline[:, : layers * len(STAGES)].reshape(len(timeline), layers, len(STAGES), -1)
    found = marks.astype(float)
    has_part = (marks[..., _EXCHANGED] >= marks[..., _BEGUN]) & (marks[..., _MULTIPLIED] > 0)
    found[~has_part] = np.nan
    for mark in (_FIRST_SLOT, _OWN_DONE):  # stages that have no tape
        found[marks[..., mark] == 0, mark] = np.nan
    return found


def table(timeline: np.ndarray) -> list[dict[str, float | str]]:
    """By stage, medians over the layers, microseconds.

    `exchange`: from the stage before being published by all to the last block having it;
    `exchange_median`: to half of them having it. `arithmetic`: the slowest block's. `whole`: from
    all published to all published, so that the stages of a layer add up to its time.
    """
    per = layers_of(timeline)
    before = np.nanmax(per[:, :-1, -1, _PUBLISHED], axis=0)
    rows: list[dict[str, float | str]] = []
    for number, stage in enumerate(STAGES):
        here = per[:, 1:, number]
        done = np.nanmax(here[..., _PUBLISHED], axis=0)
        spans = {
            "exchange": np.nanmax(here[..., _EXCHANGED], axis=0) - before,
            "exchange_median": np.nanmedian(here[..., _EXCHANGED], axis=0) - before,
            "slot": np.nanmedian(here[..., _FIRST_SLOT] - here[..., _EXCHANGED], axis=0),
            "products": np.nanmedian(here[..., _OWN_DONE] - here[..., _FIRST_SLOT], axis=0),
            "arithmetic": np.nanmax(here[..., _MULTIPLIED] - here[..., _EXCHANGED], axis=0),
            "publish": np.nanmedian(here[..., _PUBLISHED] - here[..., _MULTIPLIED], axis=0),
            "whole": done - before,
        }
        medians = {name: round(float(np.nanmedian(span)) / 1e3, 2) for name, span in spans.items()}
        rows.append({"stage": stage, **medians})
        before = done
    return rows


def picture(timeline: np.ndarray, layer: int) -> str:
    """SVG: a line a block, a bar a stage; grey waits, blue multiplies, orange publishes."""
    per = layers_of(timeline)[:, layer]
    start, end = np.nanmin(per[..., _BEGUN]), np.nanmax(per[..., _PUBLISHED])
    scale = _WIDTH / (end - start)
    bars = []
    for block, stages in enumerate(per):
        for marks in stages[~np.isnan(stages[:, 0])]:
            edges = (marks[:4] - start) * scale
            for left, right, colour in zip(edges, edges[1:], _COLOURS.values(), strict=False):
                bars.append(
                    f'<rect x="{left:.1f}" y="{block * _ROW}" width="{right - left:.1f}" '
                    f'height="{_ROW}" fill="{colour}"/>'
                )
    height = len(per) * _ROW
    label = f"{(end - start) / 1e3:.1f} microseconds, layer {layer}, {len(per)} blocks"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height + 20}">'
        f'{"".join(bars)}<text x="4" y="{height + 15}" font-size="13">{label}: '
        "grey waits, blue multiplies, orange publishes</text></svg>\n"
    )


def main() -> None:
    """Print the table; write the picture if asked to."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("shape", choices=SHAPES)
    arguments.add_argument("--svg", type=Path, help="write a picture of a middle layer here")
    options = arguments.parse_args()
    model = random_model(options.shape, "cuda")
    engine = PersistentTapeEngine(model, measure=True)
    us, timeline = traced(engine)
    engine.close()
    print(f"{options.shape}: {us:.1f} us a token, traced")
    for row in table(timeline):
        print(" ".join(f"{value:>15}" for value in row.values()))
    if options.svg:
        options.svg.write_text(picture(timeline, model.config.layers // 2), encoding="utf-8")


if __name__ == "__main__":
    main()
