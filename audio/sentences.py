"""A reply cut into pieces to speak: the first clause as soon as it is there, then sentences."""

from __future__ import annotations

import re

from audio.markdown import BREAK, SpokenWords

_MIN_LETTERS = 10  # of a piece; a shorter one is over before the next has been synthesised
# A first sentence without punctuation is not waited for: it is cut before a word that begins a
# clause, or when it has become long.
_FIRST_MIN_WORDS = 5
_FIRST_MAX_WORDS = 7  # 2.2 s of speech, 105 ms of synthesis; 11 words take 200 ms
_FIRST_SHORTEST, _FIRST_LATEST = 4, 14  # words: rather wait than begin with two
# The next pieces grow as there is more speech to cover their synthesis, which a busy processor
# drags out: the second of a long sentence would otherwise come too late.
_RAMP_WORDS = (_FIRST_MAX_WORDS, 14, 28)
_MAX_WORDS = 45  # about 60 tokens
_MAX_CHARS = 280  # as spoken: see `_length`


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CLAUSE_STARTERS = _set(
    "and but or so because that which who where when while if although though as than like"
)
# A cut after one of these would tear apart what belongs together.
_LEANING = _set(
    "a an the of to in on at by for from with into and or but that which who is are was were be "
    "been has have had do does will would can could may might must should not no very my your his "
    "her its our their this these those some any as than if when because so although while where"
)
_ABBREVIATIONS = _set(
    "dr mr mrs ms prof st sr jr rev gen col lt capt sgt hon vs etc approx dept est fig eq vol ed "
    "pp inc ltd co corp jan feb mar apr jun jul aug sep sept oct nov dec mt ft ave blvd al cf ca "
    "ph.d"
)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+")  # U.S., e.g., a.m., J.
_NUMBER = re.compile(r"\d[\d.,]*")
_OPENING, _CLOSING = "\"'([{\u201c\u2018\u00ab", "\"')]}\u201d\u2019\u00bb"
_SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")  # noqa: RUF001
_CLAUSE_ENDS = (",", ";", ":", "—", "–", "…", "...", ")", "，", "；", "、")  # noqa: RUF001


def speakable(text: str) -> str:
    """The words of a Markdown `text` that are spoken, on one line, sentence marks kept.

    Gone are emphasis, headings' and lists' marks, code blocks, tables, addresses, emoji and
    `<think>` blocks; what was between emphasis, backquotes or a link's brackets stays.
    """
    chunker = ClauseChunker()
    return " ".join([*chunker.push(text), *chunker.flush()])


class ClauseChunker:
    """Cuts a Markdown stream into speakable pieces. Joined by spaces they are `speakable(text)`.

    A piece ends at a sentence, the first at a clause already; without either it ends at a space
    before it grows past `_MAX_WORDS` or `_MAX_CHARS`.
    """

    def __init__(self) -> None:
        self._spoken = SpokenWords()
        self._words: list[str] = []
        self._pieces = 0  # so far

    @property
    def _first(self) -> bool:
        return self._pieces == 0

    @property
    def _most(self) -> int:
        """Words of the next piece."""
        return _RAMP_WORDS[self._pieces] if self._pieces < len(_RAMP_WORDS) else _MAX_WORDS

    def push(self, delta: str) -> list[str]:
        """The pieces that `delta` has made complete."""
        return [piece for word in self._spoken.push(delta) for piece in self._add(word)]

    def flush(self) -> list[str]:
        """The rest, when the reply is over."""
        pieces = [piece for word in self._spoken.flush() for piece in self._add(word)]
        return pieces + self._cut(len(self._words))

    def _add(self, word: str) -> list[str]:
        if word == BREAK:
            return self._end_line()
        if not any(map(str.isalnum, word)) and word[0] in ".,;:!?…)\"'\u2019\u201d":
            if self._words:  # left over from a removed address or emoji: it closes what it follows
                self._words[-1] += word
                return self._cut_if_complete()
            return []
        pieces = self._cut_before(word)
        self._words.append(word)
        return pieces + self._cut_if_complete()

    def _end_line(self) -> list[str]:
        if not self._words:
            return []
        if self._words[-1][-1].isalnum():
            self._words[-1] += "."  # or a list would be spoken as one sentence
        return self._cut(len(self._words)) if self._enough(len(self._words)) else []

    def _cut_before(self, word: str) -> list[str]:
        """Cut a first sentence that goes on without punctuation where `word` begins a clause."""
        count = len(self._words)
        begins = self._first and count >= _FIRST_MIN_WORDS and word.lower() in _CLAUSE_STARTERS
        begins = begins and not _leans(self._words[-1])
        return self._cut(count) if begins and self._enough(count) else []

    def _cut_if_complete(self) -> list[str]:
        words, count = self._words, len(self._words)
        clause = _ends_clause(words[-1]) and (self._first or 2 * count >= self._most)
        ends = _ends_sentence(words) or (clause and self._pieces < len(_RAMP_WORDS))
        if ends and self._enough(count):
            return self._cut(count)
        too_long = sum(map(_length, words)) + count > _MAX_CHARS
        too_long = too_long or (count >= self._most and not self._first)
        if too_long or (self._first and count >= _FIRST_MAX_WORDS):
            cut = self._best_cut()
            if too_long or cut >= _FIRST_SHORTEST or count >= _FIRST_LATEST:
                return self._cut(cut)
        return []

    def _best_cut(self) -> int:
        """How many of the words to speak when there are too many."""
        count = len(self._words)
        clauses = [at for at in range(1, count) if _ends_clause(self._words[at - 1])]
        if clauses and self._enough(clauses[-1]):
            return clauses[-1]
        firm = [
            at
            for at in range(1, count)
            if not (_leans(self._words[at - 1]) or self._words[at][0].isdigit())
        ]
        return firm[-1] if firm and self._enough(firm[-1]) else count

    def _enough(self, count: int) -> bool:
        letters = 0
        for word in self._words[:count]:
            letters += sum(map(str.isalnum, word))
        return letters >= _MIN_LETTERS

    def _cut(self, count: int) -> list[str]:
        words, self._words = self._words[:count], self._words[count:]
        piece = " ".join(words)
        if not any(map(str.isalnum, piece)):
            return []
        self._pieces += 1
        return [piece]


def _length(word: str) -> int:
    """Characters, a figure counted as the word that it is spoken as: "seven"."""
    return len(word) + 4 * sum(map(str.isdigit, word))


def _leans(word: str) -> bool:
    """Whether what follows `word` belongs to it; a full stop inside a sentence abbreviates."""
    return word.lower() in _LEANING or word.endswith(".")


def _ends_sentence(words: list[str]) -> bool:
    """Whether the last of `words`, known to be complete, ends a sentence."""
    word = words[-1].rstrip(_CLOSING)
    if not word.endswith(_SENTENCE_ENDS) or word.endswith("..."):
        return False
    if not word.endswith("."):
        return True
    core = word.lstrip(_OPENING)[:-1]
    if core.lower() in _ABBREVIATIONS or (_INITIALS.fullmatch(core + ".") and core != "I"):
        return False
    return not (_NUMBER.fullmatch(core) and _begins_sentence(words))


def _begins_sentence(words: list[str]) -> bool:
    """Whether the last of `words` is the first of its sentence: an item's number."""
    return len(words) == 1 or words[-2].endswith((*_SENTENCE_ENDS, ":"))


def _ends_clause(word: str) -> bool:
    if not word.endswith(_CLAUSE_ENDS):
        return False
    return not (word.endswith(",") and word[-2:-1].isdigit())
