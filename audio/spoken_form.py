"""Figures and abbreviations of English text in the words they are read as. Pure.

A synthesiser reads "3.50" well and "$3.50", "1990s" or "5km" badly. What a number is called comes
from num2words; the patterns here only tell what kind of number it is. Every rule looks at a whole
clause, where nothing is still arriving.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from num2words import num2words

from audio.spoken_words import (
    ABBREVIATIONS,
    CURRENCIES,
    ENDS_SENTENCE,
    FRACTIONS,
    MONTH_OF,
    MONTHS,
    NUMERALS,
    POWERS,
    SCALES,
    UNITS,
)

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_MAX_DIGITS = 15  # more is a code, read digit by digit
Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def spoken_form(text: str) -> str:
    """`text` as it is read aloud in English. What is already words stays as it is."""
    for pattern, say in _rules():
        text = pattern.sub(say, text)
    return text


@cache
def _rules() -> tuple[Rule, ...]:
    """In the order in which they apply: the more special first."""
    number, end = rf"(?P<number>{_NUMBER})", r"(?![\w/])"
    symbols = re.escape("".join(CURRENCIES))
    scales = "million|billion|trillion|k|m|bn|b"
    units = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
    rules: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
        (r"(?<!\w)(\d{4})-(\d\d)-(\d\d)(?!\w)", _iso_date),
        (
            rf"(?<!\w)(-)?([{symbols}])\s?{number}\s?({scales})?(?!\w)",
            _money,
        ),
        (rf"{number}\s?([{symbols}])(?!\w)", _money_after),
        (r"(?<![\w:.])(\d{1,2}):(\d\d)(?::\d\d)?(?:\s?([ap])\.?m\b\.?)?(?![\w:])", _clock),
        (r"(?<![\w.])(\d{1,2})\s?([ap])\.?m\b(\.(?=\s+[a-z]|\s*$|,))?", _hour),
        (r"(?<![\w.])(?:(\d\d)?(\d0)s)\b|(?<!\w)['\u2019](\d0)s\b", _decade),
        (r"(?<![\w.,])(\d+)(st|nd|rd|th)\b", _ordinal),
        (rf"\b({'|'.join(MONTH_OF)})\.?\s(?=\d)", _month),
        (r"\b([A-Z][a-z]+)\s(\d{1,2})(?=,\s\d{4}\b|\b(?![\d,.:/%-]))", _month_day),
        (r"(?<![\w/.])(\d{1,2}/\d{1,2})(?![\w/])", _fraction),
        (r"(?<![\w-])(?:\+?\d{1,3}[ -])?(?:\(\d{3}\)\s|\d{3}[ -])?\d{3}-\d{4}(?![\w-])", _phone),
        (rf"(?<![\w.-])({_NUMBER})\s?[-\u2013]\s?({_NUMBER})(?=\D|$)(?!-)", _range),
        (rf"(?<![\w.])([-\u2212])?{number}\s?(?P<unit>{units}){end}", _measure),
        (rf"(?<![\w.])([-\u2212])?{number}\s?%", _percent),
        (r"(?<!\w)#(\d+)", lambda m: f"number {_say(m[1])}"),
        (r"\b(No|no|Nr)\.\s?(\d+)", lambda m: f"number {_say(m[2])}"),
        (rf"~\s?{number}", lambda m: f"about {_say(m['number'])}"),
        (rf"(?<![\w.]){number}x\b", lambda m: f"{_say(m['number'])} times"),
        (rf"{number}\^(\d+)", lambda m: f"{_say(m['number'])} to the power of {_say(m[2])}"),
        (r"(?<=\w)([²³])", lambda m: POWERS[m[1]]),
        (r"(?<=\d)\s?\*\s?(?=\d)", lambda m: " times "),
        (r"(?<=\w)\s?=\s?(?=\d)", lambda m: " equals "),
        (r"(?<=\d)\s-\s(?=\d)", lambda m: " minus "),
        (r"\b(War|Chapter|Part|Act|Volume|Phase|Type) (VIII|VII|VI|IV|IX|III|II|V|X)\b", _numeral),
        (r"(?<![\w.])\d+(?:\.\d+){2,}(?!\w)", _version),
        (rf"(?<![\w.,])([-\u2212])?{number}(?![\w])", _plain),
        (r"(?<!\S)([(\"'\u201c]*)(\S+?)([)\"'\u201d,;:!?]*)(?=\s|$)", _word),
    )
    flags = {6: re.IGNORECASE, 7: re.IGNORECASE}
    return tuple(
        (re.compile(pattern, flags.get(place, 0)), say)
        for place, (pattern, say) in enumerate(rules)
    )


def _say(number: str) -> str:
    """A number by its value: "1,234.5"."""
    digits = number.replace(",", "")
    whole, _, fraction = digits.partition(".")
    if len(digits) > _MAX_DIGITS or (len(whole) > 1 and whole.startswith("0")):
        return _digits(digits)
    words = _words(int(whole))
    return f"{words} point {_digits(fraction)}" if fraction else words


def _words(number: int, to: str = "cardinal") -> str:
    return str(num2words(number, to=to)).replace(",", "")


def _digits(digits: str) -> str:
    return " ".join("point" if char == "." else _words(int(char)) for char in digits)


def _year(digits: str) -> str:
    return _words(int(digits), "year")


def _is_year(number: str) -> bool:
    return len(number) == 4 and number.isdigit() and "1100" <= number <= "2099"


def _plain(match: re.Match[str]) -> str:
    sign, number = match[1], match["number"]
    words = _year(number) if _is_year(number) and not sign else _say(number)
    return f"minus {words}" if sign else words


def _money(match: re.Match[str]) -> str:
    sign, symbol, number, scale = match[1], match[2], match["number"], match[4]
    return ("minus " if sign else "") + _amount(symbol, number, scale)


def _money_after(match: re.Match[str]) -> str:
    return _amount(match[2], match["number"], None)


def _amount(symbol: str, number: str, scale: str | None) -> str:
    one, many, cent, cents = CURRENCIES[symbol]
    if scale:
        return f"{_say(number)} {SCALES.get(scale, scale)} {many}"
    whole, _, fraction = number.replace(",", "").partition(".")
    if len(fraction) != 2 or not cent:
        return f"{_say(number)} {one if number == '1' else many}"
    main = f"{_say(whole)} {one if whole == '1' else many}"
    small = f"{_say(str(int(fraction)))} {cent if fraction == '01' else cents}"
    if fraction == "00":
        return main
    return small if whole == "0" else f"{main} and {small}"


def _iso_date(match: re.Match[str]) -> str:
    year, month, day = match[1], int(match[2]), int(match[3])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    return f"{MONTHS[month - 1]} {_words(day, 'ordinal')}, {_year(year)}"


def _clock(match: re.Match[str]) -> str:
    hour, minute, half = int(match[1]), match[2], match[3]
    if hour > 24 or int(minute) > 59:
        return match[0]
    words = _words(hour)
    if minute == "00":
        words += "" if half else " o'clock" if 1 <= hour <= 12 else " hundred"
    else:
        words += f" oh {_words(int(minute))}" if minute[0] == "0" else f" {_words(int(minute))}"
    return words + _half(half) + _kept_stop(match)


def _hour(match: re.Match[str]) -> str:
    return _words(int(match[1])) + _half(match[2]) + _kept_stop(match)


def _half(letter: str | None) -> str:
    return f" {letter.upper()} M" if letter else ""


def _kept_stop(match: re.Match[str]) -> str:
    """The full stop of "p.m." that also ends the sentence."""
    rest = match.string[match.end() :].strip()
    return "." if match[0].endswith(".") and not rest else ""


def _decade(match: re.Match[str]) -> str:
    century, decade = match[1], match[2] or match[3]
    tens = _words(int(decade))
    plural = f"{tens[:-1]}ies" if tens.endswith("y") else f"{tens}s"
    if decade == "00":
        return f"{_words(int(century) * 100)}s" if century else match[0]
    return f"{_words(int(century))} {plural}" if century else plural


def _ordinal(match: re.Match[str]) -> str:
    return _words(int(match[1]), "ordinal") if len(match[1]) <= _MAX_DIGITS else match[0]


def _month(match: re.Match[str]) -> str:
    return f"{MONTH_OF[match[1].lower()]} "


def _month_day(match: re.Match[str]) -> str:
    day = int(match[2])
    if match[1] not in MONTHS or not 1 <= day <= 31:
        return match[0]
    return f"{match[1]} {_words(day, 'ordinal')}"


def _fraction(match: re.Match[str]) -> str:
    upper, lower = map(int, match[1].split("/"))
    if match[1] in FRACTIONS:
        return FRACTIONS[match[1]]
    if 0 < upper < lower <= 10 and lower != 2:
        name = "quarter" if lower == 4 else _words(lower, "ordinal")
        return f"{_words(upper)} {name}{'s' if upper > 1 else ''}"
    return f"{_words(upper)} over {_words(lower)}"


def _phone(match: re.Match[str]) -> str:
    groups = re.findall(r"\d+", match[0])
    return ", ".join(_digits(group) for group in groups)


def _range(match: re.Match[str]) -> str:
    left, right = match[1], match[2]
    if _is_year(left) and _is_year(right):
        return f"{_year(left)} to {_year(right)}"
    return f"{_say(left)} to {right}"  # the second may have a unit or a percent sign


def _measure(match: re.Match[str]) -> str:
    sign, number, unit = match[1], match["number"], match["unit"]
    one, many = UNITS[unit]
    words = f"{_say(number)} {one if number == '1' else many}"
    return f"minus {words}" if sign else words


def _percent(match: re.Match[str]) -> str:
    return f"{'minus ' if match[1] else ''}{_say(match['number'])} percent"


def _numeral(match: re.Match[str]) -> str:
    return f"{match[1]} {_words(NUMERALS[match[2]])}"


def _version(match: re.Match[str]) -> str:
    return " point ".join(_say(str(int(part))) for part in match[0].split("."))


def _word(match: re.Match[str]) -> str:
    before, word, after = match[1], match[2], match[3]
    lower = word.lower()
    full = ABBREVIATIONS.get(lower)
    if full is None or (lower == "st." and not match.string[match.end() :].strip()):
        return match[0]
    last = not match.string[match.end() :].strip() and not after
    stop = "." if last and lower in ENDS_SENTENCE else ""
    return f"{before}{full}{stop}{after}"
