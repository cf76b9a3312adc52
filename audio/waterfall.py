"""Where the time went between the last sound of the speaker and the first of the answer.

Every stage ends where the next begins, so they sum to the whole by construction:

    endpointing    the acoustic end of speech until transcription could start
    transcription  until the text was there
    queue          until the engine was free (only when it was not)
    prefill        until the first token (TTFT)
    first_clause   until there were words enough to speak
    synthesis      until they were sound
    held           ready, but the speaker might have gone on (only when that cost time)
    transport      until the player had the sound
    playback       until it was audible

Work that overlapped the wait for the end of the turn is counted where it ended, not twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from audio.events import Stage
from audio.frames import STT_RATE_HZ

ORDER = (
    "endpointing",
    "transcription",
    "queue",
    "prefill",
    "first_clause",
    "synthesis",
    "held",
    "transport",
    "playback",
)
_OPTIONAL = {"queue", "held"}
_NOTICEABLE_S = 0.001
_WINDOW_BLOCKS = 48  # about 1.5 s: what was lost on the way is forgotten after that


@dataclass(slots=True)
class Waterfall:
    """Marks of one turn: when each stage ended, in seconds of the dialogue's clock.

    `began_s` is the acoustic end of speech, or for typed text the moment it came.
    """

    began_s: float
    _ends: dict[str, float] = field(default_factory=dict)

    def mark(self, stage: str, at_s: float) -> None:
        """`stage` was over at `at_s`. Only the first mark of each counts."""
        self._ends.setdefault(stage, at_s)

    def played(self, sent_s: float, now_s: float, waited_ms: float | None, ago_ms: float) -> None:
        """Mark transport and playback, of sound sent at `sent_s`, as a player tells it at `now_s`.

        It was audible `ago_ms` ago, and had been with the player for `waited_ms` by then; None from
        a player beside us, or one that cannot tell.
        """
        if waited_ms is None:
            arrived_s, audible_s = sent_s, now_s - ago_ms / 1000
        else:  # there and back again took equally long
            travelled_s = max(0.0, now_s - sent_s - (waited_ms + ago_ms) / 1000)
            arrived_s = sent_s + travelled_s / 2
            audible_s = arrived_s + waited_ms / 1000
        self.mark("transport", arrived_s)
        self.mark("playback", max(arrived_s, audible_s))

    def has(self, stage: str) -> bool:
        return stage in self._ends

    @property
    def total_ms(self) -> float:
        """From the beginning to the last mark there is."""
        return (max(self._ends.values(), default=self.began_s) - self.began_s) * 1000

    def stages(self) -> list[Stage]:
        """In order, without gaps; what took no time and is optional is part of its neighbour."""
        stages: list[Stage] = []
        before = self.began_s
        for name in ORDER:
            if name not in self._ends:
                continue
            end = max(before, self._ends[name])
            if name in _OPTIONAL and end - before < _NOTICEABLE_S:
                continue
            stages.append(Stage(name, (end - before) * 1000))
            before = end
        return stages


class StreamClock:
    """When a sample of the microphone was spoken, by the clock of who listens.

    Blocks come late or in bunches, never early, so the least late one of the last seconds tells
    when samples are due. With a recording fed faster than it was spoken that is the newest.
    """

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=_WINDOW_BLOCKS)

    def reset(self) -> None:
        """The stream was interrupted."""
        self._late.clear()

    def push(self, received: int, now_s: float) -> None:
        """Blocks up to sample number `received` were there at `now_s`."""
        self._late.append(now_s - received / STT_RATE_HZ)

    def time_of(self, sample: int) -> float:
        """Clock time of a sample, in seconds."""
        return min(self._late, default=0.0) + sample / STT_RATE_HZ
