"""What speculative decoding is worth: each engine with and without drafts, gate first.

`python -m benchmarks.speculation` or `app.py bench --speculate off,ngram[,draft:MODEL]`. Real
weights answer copy-heavy and chat prompts (`benchmarks.speculation_prompts`), greedily and without
a repetition penalty, which would work against copying. Random weights have nothing to say: their
drafts are as right and as wrong as those of the recorded replies (`benchmarks.planted`), which the
results call trace-driven. A pass of several tokens may round otherwise than several passes: where a
reply forks off the one without drafts, the float32 reference has to see a tie there, within the
gate's margin. Then what a pass costs by its width.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from benchmarks import bench, speculation_table
from benchmarks.machine import machine
from benchmarks.results import LOCAL, Entry, Report, nothing_measured
from benchmarks.speculation_contest import KIND, Contest, Settings
from benchmarks.speculation_rows import OFF
from benchmarks.subject import Subject, check_subject
from engine import leaving
from engine.cpu_cores import physical_cores
from engine.errors import UnpausedError
from engine.setup import DEFAULT_MODEL, locate_drafting
from engine.speculation import MAX_WIDTH

OWN = Path("speculation.json")  # where the results go unless told otherwise


def run(options: argparse.Namespace) -> int:
    """The command. 0 when every gate was green, 1 when one was red; faults are `UnpausedError`."""
    choices = read_choices(options.speculate)
    if options.plot or options.rivals is not None:
        raise UnpausedError("--speculate has neither --plot nor --rivals: leave them out")
    bench.check_sizes(options)
    names = bench.engine_names(options.engines)
    device = bench.chosen_device(options.device)
    threads = len(physical_cores())
    widths = [] if "width" in options.skip else range(2, MAX_WIDTH + 1)
    settings = Settings(
        choices, options.tokens, options.rounds, options.gate, threads, list(widths)
    )
    path = OWN if options.json == LOCAL else options.json
    about = machine(device, threads, options.commit)
    report = Report(path, about, dataclasses.asdict(settings), KIND)
    models = options.models or [DEFAULT_MODEL]
    for spec in models:  # last, as it may have to be fetched
        check_subject(spec)
    bench.say_left_out(names, options.engines)

    def play(subject: Subject, entry: Entry) -> None:
        Contest(subject, settings, report, entry).play(names)

    bench.measure(models, device, report, play, speculation_table.as_text)
    bench.finish(report)
    print(json.dumps(speculation_table.summary(report.content, str(path))))
    return 0 if all(map(all_green, report.content["models"])) else bench.GATE_RED


def read_choices(text: str) -> list[str]:
    """The list of `--speculate`, "off" first, which is what the others are compared with.

    Raises `UnpausedError` for one that does not exist, a draft model included.
    """
    choices = [choice.strip() for choice in text.split(",") if choice.strip()]
    for choice in choices:
        locate_drafting(choice, ("", None))
    if set(choices) <= {OFF}:
        raise UnpausedError("--speculate names what to compare, as in off,ngram")
    return [OFF, *dict.fromkeys(choice for choice in choices if choice != OFF)]


def all_green(entry: Entry) -> bool:
    """Whether every way of every engine that was judged passed, and any was."""
    verdicts = entry.get("gate", {}).get("engines", {})
    return bool(verdicts) and all(v["green"] for ways in verdicts.values() for v in ways.values())


def main() -> int:
    """`app.py bench --speculate off,ngram` with the same options."""
    from benchmarks.options import add_options

    leaving.last_words(nothing_measured)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.set_defaults(speculate="off,ngram", rounds=3, gate=32, tokens=96)
    return run(parser.parse_args())


if __name__ == "__main__":
    leaving.heed_interrupts()
    leaving.leave(leaving.run(main))
