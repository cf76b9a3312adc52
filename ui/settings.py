"""The settings in the page's address: what a link opens. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engine.reply import MAX_HIDDEN_TOKENS
from ui.replay import FASTEST, SLOWEST

VIEWS = ("talk", "race", "dial", "blind", "machine")
DEFAULT_SPEED = 750.0


@dataclass(frozen=True)
class Settings:
    """`a` and `b` are the engines of the race and the blind test; None leaves the choice open."""

    view: str = "talk"
    engine: str | None = None
    hidden: int = 0
    speed: float = DEFAULT_SPEED
    a: str | None = None
    b: str | None = None
    ignored: tuple[str, ...] = field(default=(), compare=False)  # what could not be used, in words


def read_settings(
    query: Mapping[str, str], engines: Collection[str], aliases: Mapping[str, str] | None = None
) -> Settings:
    """The settings of an address. What it does not say, or says wrongly, is the default.

    `aliases`: other names of `engines`, as the command line takes them.
    """
    ignored: list[str] = []

    def one_of(name: str, known: Collection[str]) -> str | None:
        value = query.get(name)
        if value is None or value in known:
            return value
        ignored.append(f"{name}={value[:40]} is none of {', '.join(known)}")
        return None

    def engine_of(name: str) -> str | None:
        chosen = (aliases or {}).get(query.get(name, ""))
        return chosen if chosen in engines else one_of(name, engines)

    def number(name: str, low: float, high: float, default: float) -> float:
        text = query.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = high + 1
        if low <= value <= high:
            return value
        ignored.append(f"{name}={text[:40]} is no number from {low:,.0f} to {high:,.0f}")
        return default

    return Settings(
        view=one_of("view", VIEWS) or "talk",
        engine=engine_of("engine"),
        hidden=int(number("hidden", 0, MAX_HIDDEN_TOKENS, 0)),
        speed=number("speed", SLOWEST, FASTEST, DEFAULT_SPEED),
        a=engine_of("a"),
        b=engine_of("b"),
        ignored=tuple(ignored),
    )


def rivals(engines: Collection[str], settings: Settings) -> tuple[str | None, str | None]:
    """Two different engines for the race: as the address says, else the first two there are."""
    names = list(engines)
    a = settings.a or next((name for name in names if name != settings.b), None)
    b = settings.b if settings.b != a else None
    return a, b or next((name for name in names if name != a), None)
