"""The stages of one decode step, named once for every kernel, its twin and its error messages."""

from __future__ import annotations

# Everything before a stage's exchange is complete when the next stage begins.
STAGES = (
    "embed",
    "norm + QKV",
    "RoPE + KV append",
    "attention",
    "output projection",
    "norm + gate/up + SiLU",
    "down projection",
    "norm + LM head",
    "sample",
)
EMBED, QKV, ROPE, ATTENTION, OUTPUT, GATE_UP, DOWN, HEAD, SAMPLE = range(len(STAGES))
