"""What the server counts, in Prometheus's terms: figures only, never words or addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector

if TYPE_CHECKING:
    from engine.metrics import ReplyMetrics

# Seconds. The steps are fine where a conversation is won or lost, and end where nobody waits on.
_TURN_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 4, 8, 15, 30, 60)
_TOKEN_S = (0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 1)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Telemetry:
    """The counters of one server, in a registry of their own. Safe from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"unpaused_{name}", what, labels, registry=self.registry)

        def histogram(name: str, what: str, steps: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"unpaused_{name}_seconds", what, labels, registry=self.registry, buckets=steps
            )

        self._turns = counter("turns", "Turns ended", "kind", "finish")
        self._tokens = counter("tokens", "Tokens decoded", "engine")
        self._passes = counter("passes", "Passes over the weights that verified drafts", "engine")
        self._drafted = counter("drafted_tokens", "Tokens fed before they were known", "engine")
        self._accepted = counter("accepted_tokens", "Drafted tokens that were right", "engine")
        self._dropped = counter("dropped", "Oldest items dropped from full queues", "queue")
        self._refused = counter("refused", "Requests refused before any work", "reason")
        self._errors = counter("errors", "Faults that a visitor was shown", "where")
        self._ttft = histogram("ttft", "Time to first token", _TURN_S, "engine")
        self._tpot = histogram("tpot", "Time per output token, each one", _TOKEN_S, "engine")
        self._stage = histogram("stage", "Stages until the first sound", _TURN_S, "stage")
        self._waited = histogram("queue_wait", "Wait for the engine", _TURN_S)
        self._held = histogram("turn_hold", "Time a turn held the engine", _TURN_S)

    def turn(self, kind: str, finish: str, stages: Iterable[dict[str, Any]] = ()) -> None:
        """A turn has ended; `stages` are {"name", "ms"}."""
        self._turns.labels(kind, finish).inc()
        if finish == "failed":
            self._errors.labels(kind).inc()
        for stage in stages:
            self._stage.labels(stage["name"]).observe(stage["ms"] / 1e3)

    def reply(self, metrics: ReplyMetrics) -> None:
        """A reply has ended; every token's own latency counts."""
        if metrics.ttft_ms is None:
            return
        engine = metrics.engine
        self._ttft.labels(engine).observe(metrics.ttft_ms / 1e3)
        self._tokens.labels(engine).inc(metrics.tokens)
        if metrics.drafts is not None:
            self._passes.labels(engine).inc(metrics.drafts.passes)
            self._drafted.labels(engine).inc(metrics.drafts.drafted)
            self._accepted.labels(engine).inc(metrics.drafts.accepted)
        tpot = self._tpot.labels(engine)
        for latency_ms in metrics.itl_ms():
            tpot.observe(float(latency_ms) / 1e3)

    def gate(self, waited_s: float, held_s: float) -> None:
        self._waited.observe(waited_s)
        self._held.observe(held_s)

    def dropped(self, queue: str, count: int = 1) -> None:
        """`count` of the oldest items of `queue` gave way to newer ones."""
        self._dropped.labels(queue).inc(count)

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def gauge(self, name: str, what: str, read: Callable[[], float]) -> None:
        """Report `read()` whenever somebody asks."""
        self.registry.register(_Gauge(f"unpaused_{name}", what, read))

    def exposition(self) -> bytes:
        """Everything in Prometheus's text format."""
        return generate_latest(self.registry)


class _Gauge:
    def __init__(self, name: str, what: str, read: Callable[[], float]) -> None:
        self._name, self._what, self._read = name, what, read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        yield GaugeMetricFamily(self._name, self._what, value=self._read())

    def describe(self) -> Iterable[GaugeMetricFamily]:
        yield GaugeMetricFamily(self._name, self._what)
