"""What of a Markdown stream can be spoken, word by word as it arrives.

Every rule looks at one word and where it stands in its line, never at a pair of marks that might
be far apart, so nothing has to be held back but the word that is still arriving.
"""

from __future__ import annotations

import html
import re

BREAK = "\n"  # among words: the end of a paragraph, heading, list item, table row or hidden span

_FENCE, _THINK_OPEN, _THINK_CLOSE = "```", "<think>", "</think>"
_CLOSERS = {_FENCE: _FENCE, _THINK_OPEN: _THINK_CLOSE}
_OPENERS = (_FENCE, _THINK_OPEN, _THINK_CLOSE)  # a template may have opened the last already

_MAX_WORD = 200  # characters; a longer one is cut, so that what is held stays bounded
_MAX_FIGURES = 40  # a word of more is cut into parts of so many characters: 10 s of speech each
_TOKEN = re.compile(r"\n|[^\S\n]+|\S+")
_CJK_STOP = re.compile(r"([。！？；，、])")  # noqa: RUF001 - no space follows these
_MARKER = re.compile(r"#{1,6}|>+|[-*+•]|\[[ xX]?\]|\[|\]")  # of a heading, quote, item, task
_NUMBER = re.compile(r"\d{1,3}[.)]")  # of an ordered item; it is spoken
_LINK_TARGET = re.compile(r"\]\([^)\s]*\)?")
_URL = re.compile(r"<?\b(?:https?://|www\.)\S*?(?=[.,;:!?)\]}>\"'*_]*$)")
_TAG = re.compile(r"</?[a-zA-Z][\w-]*/?>")
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+.!|~>-])")
_EVERYWHERE = re.compile(r"\*\*+|__+|~~|[`|\[\]]|!(?=\[)")
_STAR = re.compile(r"(?<![^\W_])\*+|\*+(?![^\W_])|(?<=\D)\*(?=\w)|(?<=\w)\*(?=\D)")
_UNDERSCORE = re.compile(r"(?<![^\W_])_+|_+(?![^\W_])")
_HASH = re.compile(r"^#+(?=[^\W\d])")
_PICTURES = re.compile(
    "[\U0001f000-\U0001faff\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff"
    "\ufe0e\ufe0f\u200d\u20e3\U000e0000-\U000e007f]"
)
_SAYABLE = {"&", "+", "=", "%", "<", "@", "/", "×", "÷"}  # noqa: RUF001
_DASHES = {"-", "--", "–", "—"}  # noqa: RUF001
_PUNCTUATION = set(".,;:!?…)\"'\u2019\u201d")


class SpokenWords:
    """A stream of Markdown in, its words out, with `BREAK`s between them."""

    def __init__(self) -> None:
        self._hidden = _HiddenSpans()
        self._held = ""
        self._words: list[str] = []
        self._line_start = self._line_empty = True
        self._line_structured = self._in_table = False
        self._after_digit = False

    def push(self, text: str) -> list[str]:
        """The words that are now complete. How the text was cut makes no difference."""
        self._take(self._hidden.push(text))
        return self._release()

    def flush(self) -> list[str]:
        """The rest. What is hidden and was never closed stays hidden."""
        self._take(self._hidden.flush() + "\n\n")
        return self._release()

    def _release(self) -> list[str]:
        words, self._words = self._words, []
        return words

    def _take(self, visible: str) -> None:
        text = self._held + _CJK_STOP.sub(r"\1 ", visible)
        complete = max(text.rfind(" "), text.rfind("\n"), text.rfind("\t")) + 1
        for token in _TOKEN.findall(text[:complete]):
            if token == "\n":
                self._end_line()
            elif not token.isspace():
                self._long_word(token)
        self._held = text[complete:]
        while len(self._held) > _MAX_WORD:
            address = _URL.search(self._held)
            if address and address.start() < _MAX_WORD // 2:
                self._held = self._held[: address.start()] + "https://"  # the rest is not spoken
            else:
                self._word(self._held[:_MAX_WORD])
                self._held = self._held[_MAX_WORD:]

    def _long_word(self, word: str) -> None:
        """A whole word, cut where it would have been had it arrived bit by bit."""
        while len(word) > _MAX_WORD:
            address = _URL.search(word)
            if address and address.start() < _MAX_WORD // 2:
                break  # its rest is the address, and so not spoken
            self._word(word[:_MAX_WORD])
            word = word[_MAX_WORD:]
        self._word(word)

    def _end_line(self) -> None:
        if self._line_empty or self._line_structured:
            self._break()
        self._line_start = self._line_empty = True
        self._line_structured = self._in_table = False

    def _break(self) -> None:
        self._words.append(BREAK)

    def _structure(self) -> None:
        self._line_structured = True
        self._break()

    def _word(self, raw: str) -> None:
        self._line_empty = False
        if self._in_table:
            return
        if self._line_start and self._marks_line(raw):
            return
        self._line_start = False
        if raw == "*" and self._after_digit:
            raw = "times"
        parts = [part for word in _clean(raw).split() for part in _parts(word)]
        words = [word for part in parts if (word := _say(part))]
        if words:
            self._words += words
            self._after_digit = words[-1][-1].isdigit()

    def _marks_line(self, raw: str) -> bool:
        """Whether the first word of a line says what the line is, and is not spoken."""
        if raw.startswith("|"):
            self._structure()
            self._in_table = True
            return True
        if _MARKER.fullmatch(raw):
            self._structure()
            return True
        if _NUMBER.fullmatch(raw):
            self._structure()
        return False


def _parts(word: str) -> list[str]:
    """`word`, in parts where it has many figures: each of them is spoken as a word."""
    if sum(map(str.isdigit, word)) <= _MAX_FIGURES:
        return [word]
    return [word[at : at + _MAX_FIGURES] for at in range(0, len(word), _MAX_FIGURES)]


def _clean(word: str) -> str:
    """`word` without marks, pictures and addresses; it may have become several, or none."""
    word = _TAG.sub(" ", _PICTURES.sub("", html.unescape(word)))
    word = _URL.sub("", _LINK_TARGET.sub("", word))
    word = _EVERYWHERE.sub("", _ESCAPE.sub(r"\1", word))
    word = _UNDERSCORE.sub("", _STAR.sub("", word)).replace("_", " ")
    word = _HASH.sub("", word).lstrip(">")
    return "".join(char for char in word if char.isprintable())


def _say(word: str) -> str:
    """A word without a letter or digit as it is to be spoken, or "" when it is not."""
    if any(map(str.isalnum, word)) or word in _SAYABLE:
        return word
    if word in _DASHES:
        return "—"
    return word if set(word) <= _PUNCTUATION else ""


class _HiddenSpans:
    """Takes fenced code and thinking out of a stream, leaving an empty line in its place."""

    def __init__(self) -> None:
        self._held = ""
        self._closer: str | None = None

    def push(self, text: str) -> str:
        """What is certain to be visible."""
        self._held += text
        visible = []
        while True:
            marks = _OPENERS if self._closer is None else (self._closer,)
            found = [(at, mark) for mark in marks if (at := self._held.find(mark)) >= 0]
            if not found:
                break
            at, mark = min(found)
            if self._closer is None:
                visible += [self._held[:at], "\n\n"]
            self._closer = _CLOSERS.get(mark) if self._closer is None else None
            self._held = self._held[at + len(mark) :]
        keep = self._undecided(marks)
        if self._closer is None:
            visible.append(self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return "".join(visible)

    def flush(self) -> str:
        """What was held back in case it began a mark."""
        rest, self._held = self._held, ""
        return rest if self._closer is None else ""

    def _undecided(self, marks: tuple[str, ...]) -> int:
        """Length of the longest end of what is held that begins one of `marks`."""
        for size in range(min(len(self._held), max(map(len, marks)) - 1), 0, -1):
            if any(mark.startswith(self._held[-size:]) for mark in marks):
                return size
        return 0
