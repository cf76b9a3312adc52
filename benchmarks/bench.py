"""`python app.py bench`: the referee. Same model, weights, prompt and KV cache; gates before speed.

For each model: load once, let every engine pass the gate (benchmarks/gate.py), and time those that
did, in turn; then energy, anatomy and growth. A red engine gets a reason and no figure.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks import table
from benchmarks.machine import machine
from benchmarks.match import Match, Settings, first_line, say
from benchmarks.results import Entry, Report
from benchmarks.subject import Subject, check_subject, load_subject
from engine import leaving
from engine.cpu_cores import physical_cores
from engine.errors import UnpausedError
from engine.registry import ENGINES, concrete_name, engine_entry
from engine.setup import best_device

GATE_RED = 1
MOST_CONTEXT = 2**20  # tokens; a model's own limit shortens it


def run(options: argparse.Namespace) -> int:
    """The command. 0 when every gate was green, 1 when one was red; faults are `UnpausedError`."""
    if options.speculate is not None:
        from benchmarks import speculation

        return speculation.run(options)
    device = chosen_device(options.device)
    settings = _settings(options)
    names = engine_names(options.engines)
    if options.plot:
        from benchmarks.plots import check_plot_path

        check_plot_path(options.plot)
    report = Report(options.json, machine(device, settings.threads, options.commit),
                    asdict(settings))  # fmt: skip
    models = options.models or [options.model]
    for spec in models:  # last, as it may have to be fetched
        check_subject(spec)
    say_left_out(names, options.engines)

    def play(subject: Subject, entry: Entry) -> None:
        match = Match(subject, settings, report, entry, options.rivals)
        try:
            match.play(names)
        finally:
            match.close()

    measure(models, device, report, play, table.as_text)
    return _close(report, options)


def measure(
    models: Sequence[str], device: torch.device, report: Report,
    play: Callable[[Subject, Entry], None], shown: Callable[[Entry], str],
) -> None:  # fmt: skip
    """`play` each model in turn. Ctrl+C leaves a file of what was measured, marked as partial."""
    leaving.last_words(report.interrupted)
    for spec in models:
        _measure_model(spec, device, report, play, shown)


def _close(report: Report, options: argparse.Namespace) -> int:
    finish(report)
    if options.plot:
        from benchmarks.plots import save_all

        save_all(report.path, options.plot)
    print(json.dumps(table.summary(report.content, str(report.path))))
    return 0 if all(map(table.all_green, report.content["models"])) else GATE_RED


def finish(report: Report) -> None:
    """Everything was measured. Raises `UnpausedError` where no model could be."""
    entries = report.content["models"]
    if all("error" in entry for entry in entries):
        report.save()
        raise UnpausedError(entries[0]["error"])
    report.finish()


def _measure_model(
    spec: str, device: torch.device, report: Report,
    play: Callable[[Subject, Entry], None], shown: Callable[[Entry], str],
) -> None:  # fmt: skip
    """One model, start to end; a fault of the model is written into its entry."""
    entry: dict[str, Any] = {"model": spec}
    report.begin(entry)
    try:
        say(f"{spec}: loading")
        play(load_subject(spec, device), entry)
    except (UnpausedError, MemoryError, torch.OutOfMemoryError) as error:
        entry["error"] = first_line(error)
        say(f"{spec}: {entry['error']}")
    entry["complete"] = "error" not in entry
    report.save()
    print(shown({**entry, "machine": report.content["machine"]}), flush=True)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def chosen_device(name: str) -> torch.device:
    """The device that `--device` names; raises `UnpausedError` where it is not here."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UnpausedError("there is no NVIDIA GPU that this torch can use: try --device cpu")
    return best_device() if name == "auto" else torch.device(name)


def engine_names(named: Sequence[str] | None) -> list[str]:
    """Engines to measure: those named, which must be here, or all that are."""
    if named:
        names = [concrete_name(name) for name in named]
        for name in names:
            reason = engine_entry(name).unavailable()
            if reason:
                raise UnpausedError(f"engine {name} is unavailable: {reason}")
        return list(dict.fromkeys(names))
    return [name for name, entry in ENGINES.items() if not entry.unavailable()]


def say_left_out(names: Sequence[str], named: Sequence[str] | None) -> None:
    """Why engines are missing that nobody has named; for when nothing is left to be refused."""
    for name in ENGINES:
        if not named and name not in names:
            say(f"{name}: left out: {ENGINES[name].unavailable()}")


def check_sizes(options: argparse.Namespace) -> None:
    """Raise `UnpausedError` for sizes that cannot be measured."""
    checks = [
        (options.tokens >= 2, "--tokens must be 2 or more: latencies lie between tokens"),
        (options.rounds >= 1, "--rounds must be 1 or more"),
        (options.gate >= 1, "--gate must be 1 or more: no speed without a gate"),
        (min(options.contexts) >= 16, "--context must be 16 or more"),
        (max(options.contexts) <= MOST_CONTEXT, f"--context must be {MOST_CONTEXT:,} or less"),
    ]
    for good, rule in checks:
        if not good:
            raise UnpausedError(rule)


def _settings(options: argparse.Namespace) -> Settings:
    check_sizes(options)
    return Settings(
        prompt_tokens=options.contexts[0],
        tokens=options.tokens,
        rounds=options.rounds,
        gate_positions=options.gate,
        contexts=sorted(set(options.contexts)),
        threads=len(physical_cores()),
        skipped=sorted(options.skip),
    )
