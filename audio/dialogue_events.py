"""What a dialogue tells its listener: who has the floor, what to play, what was said.

`generation` numbers the rounds (one utterance or typed text, and its reply) and grows. Whoever
plays sound keeps the generation with every sample and drops what is stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from audio.events import Event as TurnEvent
from audio.events import Stage

if TYPE_CHECKING:
    from audio.record import TurnRecord

Kind = Literal["voice", "text"]
Why = Literal["noise", "back_channel", "echo", "stop"]
Finish = Literal["complete", "stopped", "interrupted", "superseded", "no_speech", "failed"]


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """Somebody speaks, for certain. `sample` of the microphone is where that began."""

    sample: int


@dataclass(frozen=True, slots=True)
class SpeechOver:
    """They have finished, or listening has ended."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What was said. Until `final` it may be taken back: the speaker may go on."""

    generation: int
    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The speaker went on: forget what `Heard` said of this generation. It never began."""

    generation: int


@dataclass(frozen=True, slots=True)
class Ignored:
    """Something was heard while a reply was under way, and it wants no answer.

    "stop" was obeyed: the reply has ended. After all else it goes on.
    """

    text: str
    why: Why


@dataclass(frozen=True, slots=True)
class RoundBegan:
    """A round that counts: its text is the speaker's, and a reply follows."""

    generation: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Reply:
    """More of the round's reply: the turn's own events, in order, `Speech` left out."""

    generation: int
    event: TurnEvent


@dataclass(frozen=True, eq=False, slots=True)
class Play:
    """Play this now, after what came before. `pcm`: int16 [n], mono, at `rate_hz`."""

    generation: int
    pcm: np.ndarray
    rate_hz: int
    text: str


@dataclass(frozen=True, slots=True)
class PlayEnd:
    """That was all of the generation's sound: so many samples."""

    generation: int
    samples: int


@dataclass(frozen=True, slots=True)
class Duck:
    """Play quieter (`on`), or as loud as before."""

    generation: int
    on: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Be silent at once and keep what is buffered."""

    generation: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on, as loud as before, from where `Pause` came."""

    generation: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Be silent at once and drop what is buffered; nothing of this generation follows."""

    generation: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The first sound of the answer was audible: where the time until then went."""

    generation: int
    stages: list[Stage]
    total_ms: float


@dataclass(frozen=True, slots=True)
class RoundOver:
    """The last event of a round that began: its reply was played, stopped or could not be given.

    `superseded` means that the speaker went on before anything was heard of the reply: the
    round's text is part of the next one's. `heard` are the words of the reply that were played.
    """

    generation: int
    finish: Finish
    heard: str
    message: str  # of "failed", in words for the person
    record: TurnRecord


@dataclass(frozen=True, slots=True)
class Trouble:
    """Listening failed, in words for the person; the dialogue goes on."""

    message: str


Event: TypeAlias = (
    SpeechBegan
    | SpeechOver
    | Heard
    | TakenBack
    | Ignored
    | RoundBegan
    | Reply
    | Play
    | PlayEnd
    | Duck
    | Pause
    | Resume
    | Flush
    | Measured
    | RoundOver
    | Trouble
)
