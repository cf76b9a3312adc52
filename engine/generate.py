"""From an engine's tokens to text: whole characters, stop strings, hidden thinking."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from engine.base import DecodeRun, Token
from engine.tokenizer import Tokenizer

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that has become certain, and the token that made it so.

    `text` may be empty: a character is still incomplete, or what came may begin a stop string.
    `token` is None for text held back until the end. `thinking` marks text inside a
    `<think>` block, whose tags themselves are not part of any text.
    """

    text: str
    token: Token | None
    thinking: bool = False


class StopScanner:
    """Finds the first of `stops` in streamed text, also across pieces.

    `push` gives text that can no longer be part of a stop string. Once one is found `hit` is
    True and `rest` holds what followed it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.hit = False
        self.rest = ""

    def push(self, text: str) -> str:
        """Text now certain not to belong to a stop string."""
        if self.hit:
            return ""
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if not found:
            return self._release(len(self._held) - self._undecided())
        at, stop = min(found)
        self.hit, self.rest = True, self._held[at + len(stop) :]
        return self._release(at)

    def flush(self) -> str:
        """What was held back, now that nothing more comes."""
        return "" if self.hit else self._release(len(self._held))

    def _undecided(self) -> int:
        """Length of the longest tail that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0

    def _release(self, size: int) -> str:
        released, self._held = self._held[:size], self._held[size:]
        return released


class ThinkSplitter:
    """Separates `<think>...</think>` from what is to be said, across pieces."""

    def __init__(self) -> None:
        self.thinking = False
        self._scanner = StopScanner([THINK_OPEN])

    def push(self, text: str) -> Iterator[tuple[str, bool]]:
        """Pieces as (text, thinking), in order."""
        while True:
            piece = self._scanner.push(text)
            if piece:
                yield piece, self.thinking
            if not self._scanner.hit:
                return
            text, self.thinking = self._scanner.rest, not self.thinking
            self._scanner = StopScanner([THINK_CLOSE if self.thinking else THINK_OPEN])

    def flush(self) -> tuple[str, bool]:
        """What was held back, when the reply is over."""
        return self._scanner.flush(), self.thinking


def stream_text(
    run: DecodeRun, tokenizer: Tokenizer, stop_ids: frozenset[int], stops: Sequence[str] = ()
) -> Generator[TextDelta, None, bool]:
    """Text deltas of a run; every token appears in exactly one delta.

    End markers add no text. A stop string ends the run and is itself left out; tokens that were
    under way still count. Closing the iterator stops the run. Returns whether a stop string came.
    """
    decoder, scanner, splitter = tokenizer.decode_stream(), StopScanner(stops), ThinkSplitter()
    try:
        for token in run:
            text = "" if token.id in stop_ids else tokenizer.step(decoder, token.id)
            yield from _deltas(splitter, scanner.push(text), token)
            if scanner.hit:
                break
        yield from _deltas(splitter, scanner.flush(), None)
        text, thinking = splitter.flush()
        if text:
            yield TextDelta(text, None, thinking)
        return scanner.hit
    finally:
        run.stop()


def _deltas(splitter: ThinkSplitter, text: str, token: Token | None) -> Iterator[TextDelta]:
    pieces = list(splitter.push(text))
    if not pieces and token is not None:
        pieces = [("", splitter.thinking)]
    for index, (piece, thinking) in enumerate(pieces):
        yield TextDelta(piece, token if index == 0 else None, thinking)
