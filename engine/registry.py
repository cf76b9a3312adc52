"""The engines there are: one file and one line here for each."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import cast

from engine.base import DecodeEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.speculation import Method, Speculation

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineEntry:
    """How an engine is listed, and where its class is (`module:Class`, imported when needed)."""

    name: str
    label: str
    summary: str
    location: str

    def _class(self) -> type:
        module, _, attribute = self.location.partition(":")
        return cast(type, getattr(importlib.import_module(module), attribute))

    def unavailable(self) -> str | None:
        """Why this machine cannot run the engine, or None when it can."""
        return cast("str | None", self._class().unavailable())  # type: ignore[attr-defined]

    def speculates(self) -> tuple[Method, ...]:
        """The ways in which it can draft; see engine/speculation.py."""
        return tuple(getattr(self._class(), "speculates", ()))

    def check_method(self, method: Method) -> None:
        """Raise `UnpausedError` unless it can draft so."""
        methods = self.speculates()
        if method not in methods:
            known = f"only --speculate {' or '.join(methods)}" if methods else "no speculation"
            raise UnpausedError(f"engine {self.name} has {known} so far")

    def build(
        self, model: Model, threads: int | None = None, speculation: Speculation | None = None
    ) -> DecodeEngine:
        """The engine on `model`; `threads` bounds the CPU threads it may use."""
        reason = self.unavailable()
        if reason:
            raise UnpausedError(f"engine {self.name} is unavailable: {reason}")
        if speculation is None:
            return cast(DecodeEngine, self._class()(model, threads))
        self.check_method(speculation.method)
        speculation.check(model)
        return cast(DecodeEngine, self._class()(model, threads, speculation=speculation))


class BestEntry(EngineEntry):
    """The first of several engines that runs here; `location` is their names, best first."""

    def unavailable(self) -> str | None:
        """Why none of them can run."""
        reasons = [f"{entry.name}: {entry.unavailable()}" for entry in self._entries()]
        available = any(entry.unavailable() is None for entry in self._entries())
        return None if available else "; ".join(reasons)

    def speculates(self) -> tuple[Method, ...]:
        """What any of those that run here can."""
        here = [entry.speculates() for entry in self._entries() if entry.unavailable() is None]
        return tuple(dict.fromkeys(method for methods in here for method in methods))

    def build(
        self, model: Model, threads: int | None = None, speculation: Speculation | None = None
    ) -> DecodeEngine:
        """The best engine that takes `model`, and a line in the log that says which, and why."""
        refusals = []
        for entry in self._entries():
            try:
                engine = entry.build(model, threads, speculation)
            except UnpausedError as error:
                refusals.append(str(error))
                continue
            _log.warning("engine %s: %s", self.name, "; ".join([*refusals, f"so {engine.name}"]))
            return engine
        raise UnpausedError(f"no {self.name} engine runs here: {'; '.join(refusals)}")

    def choose(self, method: Method | None = None) -> str:
        """The name of the best that this machine can run, before there is a model to build it on.

        With `method`, the best that can draft so. Raises `UnpausedError` where none can.
        """
        if method is not None:
            self.check_method(method)
        for entry in self._entries():
            if entry.unavailable() is None and (method is None or method in entry.speculates()):
                return entry.name
        raise UnpausedError(f"no {self.name} engine runs here: {self.unavailable()}")

    def _entries(self) -> list[EngineEntry]:
        return [ENGINES[name] for name in self.location.split(",")]


ENGINES: dict[str, EngineEntry] = {
    entry.name: entry
    for entry in (
        EngineEntry(
            "eager",
            "Kernel per op",
            "PyTorch, one launch per operation",
            "engine.eager:EagerEngine",
        ),
        EngineEntry(
            "persistent-cpu",
            "Resident, on the CPU",
            "native threads that stay; on a CPU the gain is fused stages, integer weights and "
            "native code, not that they stay",
            "engine.cpu:PersistentCpuEngine",
        ),
        EngineEntry(
            "triton",
            "Fused kernels",
            "Triton, five launches a layer",
            "engine.triton_engine:TritonEngine",
        ),
        EngineEntry(
            "graph",
            "CUDA graph",
            "the same kernels, one graph launch per token",
            "engine.graph:GraphEngine",
        ),
        EngineEntry(
            "persistent-triton",
            "Persistent kernel",
            "Triton, one launch per reply",
            "engine.persistent_triton:PersistentTritonEngine",
        ),
        EngineEntry(
            "persistent-tape",
            "Persistent kernel, at the memory's speed",
            "CUDA, one launch per reply, weights streamed without a pause",
            "engine.persistent_tape:PersistentTapeEngine",
        ),
    )
}
DEFAULT_ENGINE = "eager"
PERSISTENT = BestEntry(
    "persistent",
    "Persistent",
    "the best resident engine of this machine",
    "persistent-tape,persistent-triton,persistent-cpu",
)


def engine_entry(name: str) -> EngineEntry:
    """The entry called `name`, or `UnpausedError` with the known names.

    "persistent" is whichever persistent engine runs best here.
    """
    if name == PERSISTENT.name:
        return PERSISTENT
    if name not in ENGINES:
        known = ", ".join([*ENGINES, PERSISTENT.name])
        raise UnpausedError(f"unknown engine {name!r}; known: {known}")
    return ENGINES[name]


def concrete_name(name: str, method: Method | None = None) -> str:
    """`name`, or the engine that "persistent" stands for here: with `method`, one that drafts so.

    For whoever keeps engines by their names. Raises `UnpausedError` as `engine_entry`, and for an
    engine that cannot draft so.
    """
    entry = engine_entry(name)
    if isinstance(entry, BestEntry):
        return entry.choose(method)
    if method is not None:
        entry.check_method(method)
    return name
