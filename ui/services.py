"""What the page needs from the rest, made when first asked for and then shared by all visitors."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from engine.errors import UnpausedError
from engine.kv_pool import KVPool
from ui.gate import Gate, QueueFull, Ticket
from ui.limits import Allowances
from ui.telemetry import Telemetry

if TYPE_CHECKING:
    import numpy as np

    from audio.pipeline import VoicePipeline
    from audio.vad import StreamingVad
    from engine.base import DecodeEngine
    from engine.conversation import Conversation
    from engine.registry import EngineEntry
    from engine.sampling import SamplingParams

Judge = Callable[["np.ndarray"], float]  # float32 [n] at 16 kHz to a probability

logger = logging.getLogger(__name__)

T = TypeVar("T")

TURNS_PER_MIN, TURNS_AT_ONCE = 40, 12  # of one visitor; talk at its fastest takes 20 a minute


class Lazy(Generic[T]):
    """A value made by whichever thread asks first, while the others wait. Failures are not kept."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[T] = []

    def __call__(self) -> T:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    @property
    def ready(self) -> bool:
        return bool(self._made)


@dataclass(frozen=True)
class Services:
    """The parts behind the page. The makers may take seconds; they run off the event loop.

    `make_engine` and `make_pipeline` are called once (per name); the others once per visitor or
    microphone. Each may raise `UnpausedError`, which the page shows, and is then asked again.
    """

    model_name: str
    engines: Sequence[EngineEntry]
    default_engine: str
    params: SamplingParams
    make_engine: Callable[[str], DecodeEngine]
    make_conversation: Callable[[], Conversation]
    make_pipeline: Callable[[], VoicePipeline]
    make_vad: Callable[[], StreamingVad]
    make_judge: Callable[[], Judge | None] | None = None  # of whether a speaker has finished
    read_bandwidth: Callable[[], float] | None = None  # of the device: bytes/s, measured


class Runtime:
    """The services as the sessions use them: one of each, behind one gate."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.telemetry = Telemetry()
        self.gate = Gate(observe=self.telemetry.gate)
        self.kv = KVPool()
        self.allowances = Allowances(TURNS_PER_MIN / 60, TURNS_AT_ONCE)
        self.pipeline: Lazy[VoicePipeline] = Lazy(services.make_pipeline)
        self.judge: Lazy[Judge | None] = Lazy(services.make_judge or (lambda: None))
        self._engines: dict[str, Lazy[DecodeEngine]] = {
            entry.name: Lazy(lambda name=entry.name: services.make_engine(name))  # type: ignore[misc]
            for entry in services.engines
        }
        self.pace_ms: dict[str, float] = {}  # by engine: what a token of its last reply took
        self.bandwidth: float | None = None  # bytes/s; None until it has been measured
        self.check_engine(services.default_engine)
        self.telemetry.gauge("queue_length", "Turns waiting or running", lambda: self.gate.length)
        self.telemetry.gauge("kv_caches", "KV caches held", lambda: self.kv.held)
        self.telemetry.gauge("kv_evictions", "KV caches taken", lambda: self.kv.evictions)

    def admit(self, visitor: str, kind: str) -> Ticket:
        """A place in the queue for a turn of `visitor`. Raises `QueueFull`."""
        try:
            wait_s = self.allowances.take(visitor)
            if wait_s:
                raise QueueFull(
                    f"That was too fast; please wait {max(1, round(wait_s))} s.", wait_s
                )
            return self.gate.enter(visitor, kind)
        except QueueFull:
            self.telemetry.refused("queue")
            raise

    def give_back(self, visitor: str) -> None:
        """A turn of `visitor` turned out not to be one: the speaker went on."""
        self.allowances.give_back(visitor)

    def check_engine(self, name: str) -> None:
        """Raises `UnpausedError` unless `name` is an engine that this machine can run."""
        entry = next((entry for entry in self.services.engines if entry.name == name), None)
        if entry is None:
            known = ", ".join(self._engines)
            raise UnpausedError(f"unknown engine {name!r}; known: {known}")
        reason = entry.unavailable()
        if reason is not None:
            raise UnpausedError(f"engine {name} is unavailable: {reason}")

    def label(self, name: str) -> str:
        """An engine's name for people."""
        found = (entry.label for entry in self.services.engines if entry.name == name)
        return next(found, name)

    def engine(self, name: str) -> DecodeEngine:
        return self._engines[name]()

    @property
    def ready(self) -> bool:
        """Whether the first turn would start without loading anything."""
        return self.pipeline.ready and self._engines[self.services.default_engine].ready

    def warm(self) -> list[threading.Thread]:
        """Begin to make what the first turn needs, on the threads returned.

        A fault is left for the turn that runs into it.
        """
        works = (lambda: self.engine(self.services.default_engine), lambda: self.pipeline().warm())
        loading = [_begin(_try, work) for work in works]
        return [*loading, _begin(self._measure_bandwidth, loading)]

    def _measure_bandwidth(self, loading: Sequence[threading.Thread]) -> None:
        """With the device to itself: after the models are there, and in the queue as a turn is."""
        read = self.services.read_bandwidth
        for thread in loading:
            thread.join()
        if read is None:
            return
        ticket = self.gate.enter()
        try:
            while ticket.wait(None) not in (0, None):
                pass
            self.bandwidth = read()
        except Exception:  # the device has no room for it: the share is then not shown
            logger.warning("the read bandwidth could not be measured", exc_info=True)
        finally:
            ticket.leave()


def _begin(work: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _try(work: Callable[[], object]) -> None:
    with contextlib.suppress(UnpausedError):
        work()
