"""The engines there are: one file and one line here for each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import cast

from engine.base import DecodeEngine
from engine.errors import UnpausedError
from engine.models.base import Model


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

    def build(self, model: Model, threads: int | None = None) -> DecodeEngine:
        """The engine on `model`; `threads` bounds the CPU threads it may use."""
        reason = self.unavailable()
        if reason:
            raise UnpausedError(f"engine {self.name} is unavailable: {reason}")
        return cast(DecodeEngine, self._class()(model, threads))


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
    )
}
DEFAULT_ENGINE = "eager"


def engine_entry(name: str) -> EngineEntry:
    """The entry called `name`, or `UnpausedError` with the known names."""
    if name not in ENGINES:
        raise UnpausedError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")
    return ENGINES[name]
