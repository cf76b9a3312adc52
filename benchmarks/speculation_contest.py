"""All ways of drafting on one model, each engine in turn; see `benchmarks.speculation`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gate import Gate, Verdict
from benchmarks.match import first_line, say
from benchmarks.pass_cost import pass_costs
from benchmarks.planted import Stage, trace
from benchmarks.results import RESULTS, Entry, Report, load_results
from benchmarks.speculation_prompts import PROMPTS
from benchmarks.speculation_rows import OFF, prompt_figures, rows
from benchmarks.subject import WIDENED, Subject
from benchmarks.timing import EngineSide, Reply, Side, in_turn
from engine.base import DecodeEngine
from engine.errors import UnpausedError
from engine.registry import ENGINES
from engine.sampling import SamplingParams
from engine.setup import locate_drafting, open_speculation
from engine.speculation import Speculation

KIND = "speculation"
_GATE_PROMPT = 128  # tokens
_SAMPLED = {"temperature": 1.0, "seed": 1}  # greedy text of random weights falls into loops


@dataclass(frozen=True)
class Settings:
    """What is measured and how much of it. Written into the results."""

    choices: Sequence[str]  # of --speculate; "off" is the first
    tokens: int
    rounds: int
    gate_positions: int
    threads: int
    widths: Sequence[int]  # of passes whose cost is measured
    order: str = "A B A B: every round lets each way of drafting decode one reply"


@dataclass
class Script:
    """One prompt of a kind, as the sides decode it. `prompt` is None for planted texts."""

    kind: str
    name: str
    sides: list[Side]
    params: SamplingParams
    prompt: list[int] | None = None


class Contest:
    """All engines and ways of drafting on one model, filling `entry` step by step."""

    def __init__(self, subject: Subject, settings: Settings, report: Report, entry: Entry) -> None:
        model = subject.model
        self.subject, self.model, self.settings = subject, model, settings
        self.report, self.entry = report, entry
        self.ways: dict[str, Speculation | None] = {}
        entry |= {
            "model": model.name,
            "weights": "real" if subject.real else "random, seed 0: for speed only",
            "trace_driven": not subject.real,
            "dtype": str(model.dtype).removeprefix("torch."),
            "weight_bytes": model.weight_bytes_per_token,
            "drafts": {}, "gate": {"engines": {}}, "failed": {}, "engines": {}, "traces": {},
        }  # fmt: skip

    def play(self, names: Sequence[str]) -> None:
        """Each engine: gate, speed, width; saved after each."""
        s = self.settings
        recorded = {} if self.subject.real else recorded_traces()
        self._open_ways()
        say(f"{self.model.name}: gate, {s.gate_positions} positions")
        prompt = self.subject.prompt(min(_GATE_PROMPT, self.model.config.max_positions // 2))
        gate = Gate.open(self.model, prompt, s.gate_positions, 1, s.threads)
        self.entry["gate"] = gate.as_dict() | {"engines": {}}
        for name in names:
            try:
                self._engine(name, gate, recorded)
            except Exception as error:  # whatever is wrong with one engine, the others compete
                self._failed(name, error)
            self.report.save()

    def _open_ways(self) -> None:
        checkpoint = self.model.checkpoint
        located = self.model.name, checkpoint.path if checkpoint else None
        for choice in self.settings.choices:
            try:
                if choice not in (OFF, "ngram") and not self.subject.real:
                    raise UnpausedError("no draft model knows what random weights say")
                found = open_speculation(locate_drafting(choice, located), self.model)
            except UnpausedError as error:
                self._failed(choice, error)
                continue
            self.ways[choice] = found
            if found is not None and found.draft_model is not None:
                name = found.draft_model.name
                same = self.model.name == name + WIDENED
                words = ": the same weights, in the blocks of their file" if same else ""
                self.entry["drafts"][choice] = name + words

    def _engine(self, name: str, gate: Gate, recorded: Mapping[str, Mapping[str, str]]) -> None:
        engines: dict[str, DecodeEngine] = {}
        try:
            verdicts = self._judge(name, gate, engines)
            if OFF not in engines or len(engines) < 2:
                return
            say(f"  {name}: timing {', '.join(engines)}")
            scripts = self._real(engines, gate) if self.subject.real else (
                self._planted(engines, recorded)
            )  # fmt: skip
            prompts = []
            for number, script in enumerate(scripts):
                prompts.append(self._time(script, verdicts, gate, number))
                # A reply can turn a way red, and so take its rows away again.
                green = [way for way in engines if verdicts[way].green and verdicts[OFF].green]
                self.entry["gate"]["engines"][name] = {w: v.as_dict() for w, v in verdicts.items()}
                self.entry["engines"][name] = {"prompts": prompts, "rows": rows(prompts, green)}
                self.report.save()
        finally:
            for engine in engines.values():
                engine.close()
        if self.settings.widths and "ngram" in green:
            say(f"  {name}: passes by width")
            costs = pass_costs(self.model, name, self.settings.threads, self.settings.widths)
            self.entry["engines"][name]["pass_cost"] = costs

    def _judge(self, name: str, gate: Gate, engines: dict[str, DecodeEngine]) -> dict[str, Verdict]:
        """Fill `engines` with those that pass, by way."""
        verdicts: dict[str, Verdict] = {}
        for way, speculation in self.ways.items():
            try:
                engine = ENGINES[name].build(self.model, self.settings.threads, speculation)
            except UnpausedError as error:
                self._failed(f"{name} {way}", error)
                continue
            verdicts[way] = verdict = gate.judge(engine)
            say(f"  {name} {way}: {'green' if verdict.green else 'RED, ' + verdict.reason}")
            if verdict.green:
                engines[way] = engine
            else:
                engine.close()
        self.entry["gate"]["engines"][name] = {w: v.as_dict() for w, v in verdicts.items()}
        return verdicts

    def _real(self, engines: Mapping[str, DecodeEngine], gate: Gate) -> Iterator[Script]:
        stop_ids = self.model.tokenizer.stop_ids
        params = SamplingParams(max_tokens=self.settings.tokens, stop_ids=stop_ids)
        for kind, prompts in PROMPTS.items():
            for name, text in prompts.items():
                ids = self.subject.question(text)
                cache = self.model.new_cache(len(ids) + params.max_tokens)
                gate.native.prefill(cache, ids[:-1])
                sides: list[Side] = [
                    EngineSide(engine, cache, ids, way) for way, engine in engines.items()
                ]
                yield Script(kind, name, sides, params, ids)

    def _planted(
        self, engines: Mapping[str, DecodeEngine], recorded: Mapping[str, Mapping[str, str]]
    ) -> Iterator[Script]:
        params = SamplingParams(max_tokens=self.settings.tokens, **_SAMPLED)  # type: ignore[arg-type]
        stage = Stage(self.model, params.max_tokens)
        nothing = stage.nothing()
        text = stage.reply(engines[OFF], nothing, params).tokens
        for kind, traces in recorded.items():
            for name, one in traces.items():
                sides: list[Side] = []
                for way, engine in engines.items():
                    before = nothing
                    if way != OFF:
                        before = stage.plant(engine, text, one, params)
                    sides.append(_PlantedSide(way, engine, stage, before))
                yield Script(kind, name, sides, params)

    def _time(
        self, script: Script, verdicts: dict[str, Verdict], gate: Gate, number: int
    ) -> dict[str, Any]:
        replies = in_turn(script.sides, script.params, self.settings.rounds, warm=number > 0)
        plain = replies[OFF][0].tokens
        same = {
            way: all(reply.tokens == plain for reply in found) for way, found in replies.items()
        }
        if script.prompt is not None:
            self._judge_replies(script, replies, verdicts, gate)
            self.entry["traces"].setdefault(script.kind, {}).setdefault(
                script.name, trace(script.prompt, plain)
            )
        return prompt_figures(script.kind, script.name, replies, same)

    def _judge_replies(
        self, script: Script, replies: Mapping[str, Sequence[Reply]],
        verdicts: Mapping[str, Verdict], gate: Gate,
    ) -> None:  # fmt: skip
        """Where a text forks off the one without drafts: beyond the margin its way turns red."""
        assert script.prompt is not None
        plain = replies[OFF][0].tokens
        for way, found in replies.items():
            for tokens in {tuple(reply.tokens) for reply in found}:
                at = first_difference(tokens, plain)
                if at is not None:
                    gate.judge_fork(script.prompt, list(tokens[: at + 1]), verdicts[way])

    def _failed(self, name: str, error: Exception) -> None:
        self.entry["failed"][name] = first_line(error)
        say(f"  {name}: not measured: {first_line(error)}")


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two texts part; None where they do not, or one is but shorter."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return None


class _PlantedSide:
    """An engine on a planted text."""

    def __init__(
        self, name: str, engine: DecodeEngine, stage: Stage, before: Sequence[int]
    ) -> None:
        self.name, self._engine, self._stage, self._before = name, engine, stage, before

    def first_token_ms(self) -> float:
        raise NotImplementedError("a cache of noise has no prompt")

    def reply(self, params: SamplingParams) -> Reply:
        return self._stage.reply(self._engine, self._before, params)


def recorded_traces(folder: Path = RESULTS) -> dict[str, dict[str, str]]:
    """By kind and prompt, those of the newest committed run on real weights.

    Raises `UnpausedError` where there is none.
    """
    for entry in load_results(folder, KIND):
        if entry.get("traces"):
            return dict(entry["traces"])
    raise UnpausedError(
        "there are no recorded replies for random weights to repeat: measure a real model first, "
        f"with --json {folder / KIND}_NAME.json"
    )
