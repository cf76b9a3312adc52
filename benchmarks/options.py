"""The options of `app.py bench`. Imports nothing heavy: every command's parser comes by here."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.results import LOCAL

PARTS = ("anatomy", "growth", "energy", "width")
RIVALS = ("transformers", "llama.cpp")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare them on `parser`."""
    add = parser.add_argument
    add("--engines", nargs="+", metavar="E", help="(default: all that this machine can run)")
    add("--models", nargs="+", metavar="M", help="as --model, or shape:NAME for random weights "
        "of a published shape, for speed only, or bf16:NAME for a model widened to bfloat16 "
        "(default: smollm2-135m-instruct)")  # fmt: skip
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: auto)")
    add("--context", nargs="+", type=int, dest="contexts", metavar="N",
        default=[512, 128, 2048, 8192],
        help="prompt of the comparison, then contexts for growth (512 128 2048 8192)")  # fmt: skip
    add("--speculate", metavar="LIST", help="measure instead what drafts are worth: "
        "off,ngram[,draft:MODEL], over copy-heavy and chat prompts")  # fmt: skip
    add("--tokens", type=int, default=128, help="tokens of a timed reply (default: 128)")
    add("--rounds", type=int, default=5, help="replies per engine, in turn (default: 5)")
    add("--gate", type=int, default=64, help="positions the gate compares (default: 64)")
    add(
        "--skip",
        nargs="+",
        choices=PARTS,
        default=[],
        help="leave parts out; width is of --speculate",
    )
    add("--rivals", nargs="*", choices=RIVALS, metavar="R",
        help=f"also {', '.join(RIVALS)}, where installed (without names: all of them)")  # fmt: skip
    add("--json", type=Path, default=LOCAL, metavar="OUT", help=f"results (default: {LOCAL})")
    add("--plot", type=Path, metavar="OUT.png", help="also draw them: .png, .svg or .pdf")
    add("--commit", help="what to call this checkout where git cannot tell")
