"""All engines on one model: gate, speed, energy, anatomy, growth, written down step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import anatomy as anatomies
from benchmarks import growth
from benchmarks.energy import METHOD as ENERGY_METHOD
from benchmarks.energy import energy_counter, energy_mj_per_token
from benchmarks.gate import Gate, Verdict
from benchmarks.results import Report
from benchmarks.rivals import open_rivals
from benchmarks.subject import Subject
from benchmarks.timing import EngineSide, Side, SideFailed, figures, first_tokens, in_turn
from engine import leaving
from engine.bandwidth import read_bandwidth
from engine.base import DecodeEngine
from engine.errors import UnpausedError
from engine.registry import ENGINES
from engine.sampling import SamplingParams


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


def say(text: str) -> None:
    """Progress, beside the results on standard output; none after Ctrl+C, which ends it here."""
    leaving.heed_lost_interrupt()
    print(text, file=sys.stderr, flush=True)


class Match:
    """All engines on one model, filling `entry` step by step."""

    def __init__(
        self, subject: Subject, settings: Settings, report: Report, entry: dict[str, Any],
        rivals: Sequence[str] | None,
    ) -> None:  # fmt: skip
        model = subject.model
        self.subject, self.model, self.settings = subject, model, settings
        self.report, self.entry, self.rivals = report, entry, rivals
        (context,) = growth.possible_contexts(model, [settings.prompt_tokens], settings.tokens)
        if context < settings.prompt_tokens:
            say(f"{model.name}: a prompt of {context:,} tokens is the longest that it has room for")
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
                found = {"reason": f"taking it failed: {first_line(error)}"}
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
        self.entry["failed"][name] = first_line(error)
        say(f"  {name}: not measured: {first_line(error)}")


def first_line(error: Exception) -> str:
    """A fault in one line; one of a user or the machine in its own words."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if isinstance(error, UnpausedError) else f"{type(error).__name__}: {text}"
