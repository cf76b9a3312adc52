"""espeak-ng as Piper asks it for phonemes, without what each question would leave behind.

espeak-ng keeps a copy of the voice, 1.3 kB, every time that one is chosen, until it speaks itself,
which it never does here; Piper chooses it for every clause. And piper-tts 1.8 keeps a reference to
every clause that it hands out. A server of voice turns grew by some 15 MB an hour of both.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import piper
from piper import espeakbridge


class Espeak:
    """Stands for `piper.espeakbridge`, and is used under Piper's own lock as that is."""

    def __init__(self, bridge: Any) -> None:
        self._bridge = bridge
        self._voice: str | None = None
        self._keeps: bool | None = None  # whether clauses are kept; asked when there is a voice

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bridge, name)  # what else there is

    def initialize(self, data_dir: str) -> None:
        self._bridge.initialize(data_dir)
        self._voice = None

    def set_voice(self, voice: str) -> None:
        """Raises what the bridge raises of a voice that it does not know."""
        if voice != self._voice:
            self._voice = None
            self._bridge.set_voice(voice)
            self._voice = voice

    def get_phonemes(self, text: str) -> list[tuple[str, str, bool]]:
        """Of each clause: (phonemes, what ends it, whether that ends a sentence)."""
        if self._keeps is None:
            self._keeps = self._keeps_clauses()
        clauses: list[tuple[str, str, bool]] = self._bridge.get_phonemes(text)
        if self._keeps:
            _let_go(clauses)
        return clauses

    def _keeps_clauses(self) -> bool:
        """Whether a new clause has one reference more than the list that it is in."""
        first, second = (self._bridge.get_phonemes("a") for _ in range(2))
        one_more = [_OWN + 1]
        return _references(first) == one_more == _references(second) and first[0] is not second[0]


def use() -> None:
    """From now on Piper asks through `Espeak`. Idempotent."""
    if not isinstance(piper.espeakbridge, Espeak):
        piper.espeakbridge = Espeak(espeakbridge)  # type: ignore[assignment]


def _let_go(clauses: list[Any]) -> None:
    """Give back the one reference too many of each."""
    for clause, count in zip(clauses, _references(clauses), strict=True):
        if count == _OWN + 1:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(clause))


def _references(items: list[Any]) -> list[int]:
    return [sys.getrefcount(item) for item in items]


_OWN = _references([tuple(["of", "a", "list"])])[0]  # how one looks that only its list refers to
