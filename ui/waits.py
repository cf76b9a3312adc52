"""How long turns still take, estimated from those that have ended.

Of a turn under way it is known whose it is, its kind, for how long it has been served, how many
tokens it has, and, once those are all decoded, how much of them is yet to be said. Of one that
waits only the first two are: how long its reply will be nobody knows before it is decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.metrics import ReplyMetrics

_REMEMBERED = 64  # turns, and pieces of speech, that estimates rest on
_ENOUGH = 3  # turns of a kind; fewer say little about it
_OTHERS_WEIGH = 0.5  # all others, where a turn of the visitor's own weighs 1: people keep to their
# ways, and one turn says more about the next than who else is there


class Reply(Protocol):
    """As `engine.reply.ReplyStream`."""

    text: str

    def metrics(self) -> ReplyMetrics: ...


@dataclass(frozen=True)
class Progress:
    """`tokens` decoded so far; `characters` to be spoken in all, None until all is decoded."""

    tokens: int = 0
    characters: int | None = None


HowFar = Callable[[], Progress]


def progress_of(reply: Reply | None, spoken: bool) -> Progress:
    """From any thread, at any time of the reply, which may not have begun."""
    if reply is None:
        return Progress()
    metrics = reply.metrics()
    characters = len(reply.text) if spoken else 0
    return Progress(metrics.tokens, characters if metrics.finish_reason else None)


@dataclass(frozen=True)
class _Turn:
    visitor: str
    kind: str
    seconds: float
    tokens: int


class Durations:
    """Of the last turns. Not thread-safe: its gate's lock guards it."""

    def __init__(self) -> None:
        self._turns: deque[_Turn] = deque(maxlen=_REMEMBERED)
        self._voiced: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)  # (seconds, characters)

    def add(self, visitor: str, kind: str, seconds: float, tokens: int) -> None:
        """A turn has ended."""
        self._turns.append(_Turn(visitor, kind, seconds, tokens))

    def add_voiced(self, seconds: float, characters: int) -> None:
        """A clause became speech in this time, while a reply was being said."""
        self._voiced.append((seconds, characters))

    def expected(self, visitor: str, kind: str) -> float | None:
        """Seconds of a turn that has not begun; None before any has ended."""
        return _mean(self._turns, visitor, kind)

    def remaining(
        self,
        visitor: str,
        kind: str,
        elapsed_s: float,
        progress: Progress,
        said: int,
        quiet_s: float,
    ) -> float:
        """Seconds that a turn still takes. `said` of its characters are speech, and nothing more
        has become speech for `quiet_s`.
        """
        if progress.characters is not None:
            unsaid, pace = max(0, progress.characters - said), self._pace()
            if not unsaid or pace is not None:
                return max(0.0, unsaid * (pace or 0.0) - quiet_s)
        if progress.tokens:
            longer = [turn for turn in self._turns if turn.tokens > progress.tokens]
        else:
            longer = [turn for turn in self._turns if turn.seconds > elapsed_s]
        whole = _mean(longer, visitor, kind)
        if whole is None:  # longer than all before it: as much again as half of an average one
            return (self.expected(visitor, kind) or 0.0) / 2
        return max(0.0, whole - elapsed_s)

    def _pace(self) -> float | None:
        """Seconds for a character to become speech."""
        characters = sum(count for _, count in self._voiced)
        return sum(seconds for seconds, _ in self._voiced) / characters if characters else None


def _mean(turns: Iterable[_Turn], visitor: str, kind: str) -> float | None:
    """Of their seconds: of the visitor's own, and, once for all, of others of the kind.

    A mean, since turns are added up. None of none.
    """
    turns = list(turns)
    own = [turn.seconds for turn in turns if visitor and turn.visitor == visitor]
    others = [turn for turn in turns if not visitor or turn.visitor != visitor]
    alike = [turn for turn in others if turn.kind == kind]
    rest = [turn.seconds for turn in (alike if len(alike) >= _ENOUGH else others)]
    if not rest:
        return sum(own) / len(own) if own else None
    common = sum(rest) / len(rest)
    return (sum(own) + _OTHERS_WEIGH * common) / (len(own) + _OTHERS_WEIGH)
