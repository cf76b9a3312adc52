"""What a turn tells whoever iterates it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from engine.base import Token
    from engine.metrics import ReplyMetrics

Finish = Literal["complete", "stopped"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of the way from the end of speech to the first sound of the answer."""

    name: str
    ms: float


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the reply, and the token it came with. Hidden thinking has tokens but no text."""

    text: str
    token: Token | None


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause or sentence is complete and goes to the synthesiser."""

    text: str


@dataclass(frozen=True, eq=False, slots=True)
class Speech:
    """The voice for `text`, a clause or sentence. `pcm`: int16 [n], mono, at `rate_hz`."""

    pcm: np.ndarray
    rate_hz: int
    text: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The end of a turn. `reply` is all of it, also where it was stopped; `metrics` are the
    engine's. `stages` follow each other without a gap: when there was a voice they sum to the
    time from the start of the turn to its first sample.
    """

    reply: str
    metrics: ReplyMetrics | None
    stages: list[Stage]
    finish: Finish


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The end of a turn that could not be answered, in words for the person."""

    message: str


Event: TypeAlias = Delta | Clause | Speech | TurnDone | TurnFailed
