"""`python app.py bench`: the referee. Same model, weights, prompt and KV cache; gates before speed.

For each model: load once, let every engine pass the gate (benchmarks/gate.py), and time those that
did, in turn; then energy, anatomy and growth. A red engine gets a reason and no figure.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks import anatomy as anatomies
from benchmarks import growth, table
from benchmarks.energy import METHOD as ENERGY_METHOD
from benchmarks.energy import energy_counter, energy_mj_per_token
from benchmarks.gate import Gate, Verdict
from benchmarks.machine import machine
from benchmarks.results import Report
from benchmarks.rivals import open_rivals
from benchmarks.subject import Subject, check_subject, load_subject
from benchmarks.timing import EngineSide, Side, SideFailed, figures, first_tokens, in_turn
from engine.bandwidth import read_bandwidth
from engine.base import DecodeEngine
from engine.cpu_cores import physical_cores
from engine.errors import UnpausedError
from engine.registry import ENGINES, engine_entry
from engine.sampling import SamplingParams
from engine.setup import best_device

GATE_RED = 1


@dataclass(frozen=True)
class Settings:
    """What is measured and how much of it. Written into the results."""

    prompt_tokens: int
    tokens: int
    rounds: int
    gate_positions: int
    contexts: Sequence[int]
    threads: int
    skipped: Sequence[str]
    order: str = "A B A B: every round lets each engine decode one reply"


def run(options: argparse.Namespace) -> int:
    """The command. 0 when every gate was green, 1 when one was red; faults are `UnpausedError`."""
    device = _device(options.device)
    settings = _settings(options)
    names = _engine_names(options.engines)
    models = options.models or [options.model]
    for spec in models:
        check_subject(spec)
    if options.plot:
        from benchmarks.plots import check_plot_path

        check_plot_path(options.plot)
    rivals = options.rivals
    report = Report(options.json, machine(device, settings.threads, options.commit),
                    asdict(settings))  # fmt: skip
    try:
        for spec in models:
            _measure_model(spec, names, rivals, device, settings, report)
    except KeyboardInterrupt:
        report.save()
        say(f"interrupted: what was measured is in {report.path}, marked as partial")
        raise
    return _close(report, options)


def say(text: str) -> None:
    """Progress, beside the results on standard output."""
    print(text, file=sys.stderr, flush=True)


def _close(report: Report, options: argparse.Namespace) -> int:
    entries = report.content["models"]
    if all("error" in entry for entry in entries):
        report.save()
        raise UnpausedError(entries[0]["error"])
    report.finish()
    if options.plot:
        from benchmarks.plots import save_all

        save_all(report.path, options.plot)
    print(json.dumps(table.summary(report.content, str(report.path))))
    return 0 if all(table.all_green(entry) for entry in entries) else GATE_RED


def _measure_model(
    spec: str, names: Sequence[str], rivals: Sequence[str] | None, device: torch.device,
    settings: Settings, report: Report,
) -> None:  # fmt: skip
    """One model, start to end; a fault of the model is written into its entry."""
    entry: dict[str, Any] = {"model": spec}
    report.begin(entry)
    try:
        say(f"{spec}: loading")
        subject = load_subject(spec, device)
        match = _Match(subject, settings, report, entry, rivals)
        try:
            match.play(names)
        finally:
            match.close()
    except (UnpausedError, MemoryError, torch.OutOfMemoryError) as error:
        entry["error"] = _first_line(error)
        say(f"{spec}: {entry['error']}")
    entry["complete"] = "error" not in entry
    report.save()
    print(table.as_text({**entry, "machine": report.content["machine"]}), flush=True)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class _Match:
    """All engines on one model, filling `entry` step by step."""

    def __init__(
        self, subject: Subject, settings: Settings, report: Report, entry: dict[str, Any],
        rivals: Sequence[str] | None,
    ) -> None:  # fmt: skip
        model = subject.model
        self.subject, self.model, self.settings = subject, model, settings
        self.report, self.entry, self.rivals = report, entry, rivals
        (context,) = growth.possible_contexts(model, [settings.prompt_tokens], settings.tokens)
        self.prompt = subject.prompt(context)
        self.engines: list[DecodeEngine] = []
        self.ceiling = self._read_ceiling()
        entry |= {
            "model": model.name,
            "weights": "real" if subject.real else "random, seed 0: for speed only",
            "dtype": str(model.dtype).removeprefix("torch."),
            "weight_bytes": model.weight_bytes_per_token,
            "kv_bytes_per_position": model.new_cache(1).bytes_per_position,
            "prompt_tokens": context,
            "read_ceiling_bytes_per_s": round(self.ceiling),
            "ceiling_method": "a plain sum over an array far larger than any cache: the median of "
            "7, before and after the timing, the larger of the two",
            "engines": {}, "failed": {}, "anatomy": {}, "growth": {},
        }  # fmt: skip

    def play(self, names: Sequence[str]) -> None:
        """Gate, then speed, then the rest; saved after each step."""
        gate = self._judge(names)
        self.report.save()
        self.sides = [EngineSide(engine, gate.cache, self.prompt) for engine in self.engines]
        if not self.sides:
            return
        everyone = [*self.sides, *self.outsiders]
        say(f"{self.model.name}: timing {', '.join(side.name for side in everyone)}")
        self._time(gate)
        steps: dict[str, Callable[[Gate], None]] = {
            "energy": self._energy, "anatomy": self._anatomy, "growth": self._growth,
        }  # fmt: skip
        for part, step in steps.items():
            if part not in self.settings.skipped and self.sides:
                self.report.save()
                say(f"{self.model.name}: {part}")
                step(gate)

    def close(self) -> None:
        """End every engine."""
        for engine in self.engines:
            engine.close()
        self.engines = []

    def _judge(self, names: Sequence[str]) -> Gate:
        s = self.settings
        say(f"{self.model.name}: gate, {s.gate_positions} positions")
        gate = Gate.open(self.model, self.prompt, s.gate_positions, s.tokens + 1, s.threads)
        verdicts: dict[str, Any] = {}
        self.entry["gate"] = gate.as_dict() | {"engines": verdicts}
        for name in names:
            engine: DecodeEngine | None = None
            try:
                engine = ENGINES[name].build(self.model, s.threads)
                verdict = gate.judge(engine)
            except Exception as error:  # whatever is wrong with one engine, the others compete
                self._failed(name, error)
            else:
                verdicts[name] = verdict.as_dict()
                say(f"  {name}: {'green' if verdict.green else 'RED, ' + verdict.reason}")
                if verdict.green:
                    self.engines.append(engine)
                    continue
            if engine is not None:
                engine.close()
        self.outsiders = self._judge_rivals(gate, verdicts)
        gate.release()
        return gate

    def _judge_rivals(self, gate: Gate, verdicts: dict[str, Any]) -> list[Side]:
        """Rivals give no logits: their greedy tokens are compared, which is what can be."""
        found: list[Side] = []
        params = SamplingParams(max_tokens=gate.positions)
        s = self.settings
        tokens = max(s.tokens, s.gate_positions)
        for name, side in open_rivals(self.rivals, self.subject, self.prompt, tokens, s.threads):
            if isinstance(side, str):
                self._failed(name, UnpausedError(side))
                continue
            verdict = Verdict(positions=gate.positions)
            gate.judge_reply(side.reply(params).tokens, verdict)
            verdicts[name] = verdict.as_dict()
            say(f"  {name}: {'green' if verdict.green else 'RED, ' + verdict.reason}")
            if verdict.green:
                found.append(side)
        return found

    def _time(self, gate: Gate) -> None:
        s = self.settings
        params = SamplingParams(max_tokens=s.tokens)
        replies = self._without_failures(lambda sides: in_turn(sides, params, s.rounds))
        ttfts = self._without_failures(lambda sides: first_tokens(sides, s.rounds))
        # A ceiling taken in a disturbed moment would flatter everybody.
        self.ceiling = max(self.ceiling, self._read_ceiling())
        self.entry["read_ceiling_bytes_per_s"] = round(self.ceiling)
        positions = len(self.prompt) + s.tokens / 2
        for side in [*self.sides, *self.outsiders]:
            self.entry["engines"][side.name] = self._figures(
                side, replies[side.name], ttfts[side.name], positions
            )

    def _figures(
        self, side: Side, replies: Any, ttfts: Sequence[float], positions: float
    ) -> dict[str, Any]:
        if not isinstance(side, EngineSide):
            label = {"label": "another program", "rival": True}
            return label | figures(replies, ttfts, None, self.ceiling)
        weight_bytes = side.engine.weight_bytes_per_token
        floors = anatomies.floors_us(self.model, weight_bytes, positions, self.ceiling)
        read = (floors["weights_us"] + floors["kv_us"]) / 1e6 * self.ceiling
        found = {"label": ENGINES[side.name].label, "weight_bytes_per_token": weight_bytes}
        return found | figures(replies, ttfts, read, self.ceiling) | {"floor_us": floors}

    def _read_ceiling(self) -> float:
        """Bytes/s, measured now: `read_bandwidth` itself remembers its first answer."""
        return read_bandwidth.__wrapped__(self.model.device.type, self.settings.threads)

    def _energy(self, gate: Gate) -> None:
        counter = energy_counter(self.model.device)
        if counter is None:
            self.entry["energy"] = "NVML offers none here"
            return
        self.entry["energy"] = ENERGY_METHOD
        params = SamplingParams(max_tokens=self.settings.tokens)
        for side in self.sides:
            joules = energy_mj_per_token(side, params, counter)
            self.entry["engines"][side.name]["energy_mj_per_token"] = joules

    def _anatomy(self, gate: Gate) -> None:
        for side in self.sides:
            try:
                found = anatomies.anatomy(side, gate.cache, self.prompt)
            except Exception as error:
                found = {"reason": f"taking it failed: {_first_line(error)}"}
            self.entry["anatomy"][side.name] = found

    def _growth(self, gate: Gate) -> None:
        grown: dict[str, Any] = self.entry["growth"]
        self.outsiders = []  # engines only
        grown |= {"sampled_with": growth.SAMPLED, "tokens": growth.TOKENS, "rounds": growth.ROUNDS}
        grown["sampling"] = self._without_failures(lambda _: growth.by_sampling(self.sides))
        grown["context"] = self._without_failures(
            lambda _: growth.by_context(
                self.model, [side.engine for side in self.sides], self.settings.contexts
            )
        )

    def _without_failures(self, step: Callable[[Sequence[Side]], Any]) -> Any:
        """`step` with every side; one that fails is left out and the step begins again."""
        while self.sides or self.outsiders:
            try:
                return step([*self.sides, *self.outsiders])
            except SideFailed as failure:
                self._failed(failure.side, failure.error)
                self.sides = [side for side in self.sides if side.name != failure.side]
                self.outsiders = [side for side in self.outsiders if side.name != failure.side]
        raise UnpausedError(f"no engine could decode {self.model.name}: see the reasons above")

    def _failed(self, name: str, error: Exception) -> None:
        self.entry["failed"][name] = _first_line(error)
        say(f"  {name}: not measured: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if isinstance(error, UnpausedError) else f"{type(error).__name__}: {text}"


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UnpausedError("there is no NVIDIA GPU that this torch can use: try --device cpu")
    return best_device() if name == "auto" else torch.device(name)


def _engine_names(named: Sequence[str] | None) -> list[str]:
    """Engines to measure: those named, which must be here, or all that are."""
    if named:
        for name in named:
            reason = engine_entry(name).unavailable()
            if reason:
                raise UnpausedError(f"engine {name} is unavailable: {reason}")
        return list(dict.fromkeys(named))
    reasons = {name: entry.unavailable() for name, entry in ENGINES.items()}
    for name, reason in reasons.items():
        if reason:
            say(f"{name}: left out: {reason}")
    return [name for name, reason in reasons.items() if not reason]


def _settings(options: argparse.Namespace) -> Settings:
    checks = [
        (options.tokens >= 2, "--tokens must be 2 or more: latencies lie between tokens"),
        (options.rounds >= 1, "--rounds must be 1 or more"),
        (options.gate >= 1, "--gate must be 1 or more: no speed without a gate"),
        (min(options.contexts) >= 16, "--context must be 16 or more"),
    ]
    for good, rule in checks:
        if not good:
            raise UnpausedError(rule)
    return Settings(
        prompt_tokens=options.contexts[0],
        tokens=options.tokens,
        rounds=options.rounds,
        gate_positions=options.gate,
        contexts=sorted(set(options.contexts)),
        threads=len(physical_cores()),
        skipped=sorted(options.skip),
    )
