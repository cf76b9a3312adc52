"""A recorded reply: its tokens, when each came by the engine's clock, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.reply import ReplyStream


@dataclass(frozen=True, slots=True)
class TraceToken:
    """`at_ms` counts from when the engine took up the prompt. Hidden tokens have no text."""

    id: int
    at_ms: float
    text: str
    hidden: bool


@dataclass(frozen=True)
class Trace:
    """One reply of one engine, as it was measured. `metrics` is `ReplyMetrics.as_dict()`."""

    question: str
    engine: str
    label: str
    model: str
    seed: int
    tokens: tuple[TraceToken, ...]
    metrics: dict[str, Any]

    @classmethod
    def of(cls, reply: ReplyStream, label: str) -> Trace:
        """What `reply` was; `label` is its engine's name for people."""
        metrics = reply.metrics()
        tokens: list[TraceToken] = []
        for delta in reply.deltas:
            text = "" if delta.thinking else delta.text
            if delta.token is not None:
                at_ms = (delta.token.time_ns - metrics.start_ns) / 1e6
                tokens.append(TraceToken(delta.token.id, at_ms, text, delta.thinking))
            elif tokens:  # text held back until a later token, or the end: it came with the last
                last = tokens[-1]
                tokens[-1] = TraceToken(last.id, last.at_ms, last.text + text, last.hidden)
        return cls(
            question=reply.user_text,
            engine=metrics.engine,
            label=label,
            model=metrics.model,
            seed=reply.request.params.seed,
            tokens=tuple(tokens),
            metrics=metrics.as_dict(),
        )

    @property
    def answer(self) -> str:
        """What was said."""
        return "".join(token.text for token in self.tokens)

    @property
    def spoken_ids(self) -> list[int]:
        """The ids of the tokens that are no hidden ones."""
        return [token.id for token in self.tokens if not token.hidden]

    @property
    def end_ms(self) -> float:
        """When the last token came; 0 without any."""
        return self.tokens[-1].at_ms if self.tokens else 0.0

    @property
    def rate(self) -> float:
        """Tokens per second of decoding; 0 where too few came to tell."""
        return float(self.metrics["tokens_per_s"] or 0.0)

    def latencies_ms(self) -> list[float]:
        """Each token's own latency: the first one's is the time to first token."""
        times = [0.0, *(token.at_ms for token in self.tokens)]
        return [later - sooner for sooner, later in pairwise(times)]

    def as_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready, milliseconds rounded to microseconds."""
        return {
            "question": self.question,
            "answer": self.answer.strip(),
            "engine": self.engine,
            "engine_label": self.label,
            "model": self.model,
            "seed": self.seed,
            "metrics": self.metrics,
            "tokens": [
                {"id": t.id, "at_ms": round(t.at_ms, 3), "text": t.text, "hidden": t.hidden}
                for t in self.tokens
            ],
        }


def first_difference(one: Trace, other: Trace) -> int | None:
    """The number of the first token that differs (from 0), or None when all are the same.

    Hidden tokens are left out: a model's own thoughts may end sooner on one engine.
    """
    ids, others = one.spoken_ids, other.spoken_ids
    for number, (left, right) in enumerate(zip(ids, others, strict=False)):
        if left != right:
            return number
    return None if len(ids) == len(others) else min(len(ids), len(others))
