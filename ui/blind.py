"""The blind test: which of two hidden runs wrote faster? Trials, counts, a p-value. Pure.

Guessing is right half of the time, so the number of right answers among those that were given is
binomial with p = 1/2 for whoever cannot tell (the sign test). "Can't tell" is counted apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.errors import UnpausedError
from ui.trace import Trace, first_difference

Choice = Literal["A", "B", "none"]
MAX_TRIALS = 200  # in one session
CHANCE = 0.05  # a p-value below it is called unlikely to be chance


@dataclass(frozen=True)
class Trial:
    """Two runs in a hidden order, and what the visitor chose."""

    runs: tuple[Trace, Trace]  # shown as A and B
    choice: Choice

    @property
    def faster(self) -> Choice:
        """The one that decoded more tokens per second."""
        one, other = self.runs
        return "A" if one.rate > other.rate else "B"

    @property
    def right(self) -> bool | None:
        """None for who could not tell."""
        return None if self.choice == "none" else self.choice == self.faster

    def as_dict(self) -> dict[str, Any]:
        """The trial for export: what ran, what was chosen."""
        one, other = self.runs
        return {
            "question": one.question,
            "A": {"engine": one.engine, "tokens_per_s": one.rate, "end_ms": round(one.end_ms, 3)},
            "B": {
                "engine": other.engine,
                "tokens_per_s": other.rate,
                "end_ms": round(other.end_ms, 3),
            },
            "identical_tokens": first_difference(one, other) is None,
            "faster": self.faster,
            "choice": self.choice,
            "right": self.right,
        }


@dataclass
class BlindTest:
    """The trials of one session. A trial is open from its runs to the visitor's choice."""

    trials: list[Trial] = field(default_factory=list)
    open_runs: tuple[Trace, Trace] | None = None

    def begin(self, runs: tuple[Trace, Trace]) -> None:
        """Show `runs` as A and B; one that was not answered is forgotten."""
        if len(self.trials) >= MAX_TRIALS:
            raise UnpausedError(f"{MAX_TRIALS} trials are enough: export them and begin anew")
        self.open_runs = runs

    def choose(self, choice: Choice) -> Trial:
        """End the open trial. Raises `UnpausedError` when there is none."""
        if self.open_runs is None:
            raise UnpausedError("there is no trial to answer: start one first")
        trial = Trial(self.open_runs, choice)
        self.open_runs = None
        self.trials.append(trial)
        return trial

    @property
    def decided(self) -> int:
        """Trials in which something was chosen."""
        return sum(trial.right is not None for trial in self.trials)

    @property
    def right(self) -> int:
        return sum(trial.right is True for trial in self.trials)

    @property
    def p_value(self) -> float | None:
        """The chance of so many right answers or more by guessing; None before any."""
        return binomial_tail(self.right, self.decided) if self.decided else None

    def verdict(self) -> str:
        """The standing in one or two sentences."""
        undecided = len(self.trials) - self.decided
        if not self.trials:
            return "No trials yet."
        apart = f' and "can\'t tell" {undecided} times' if undecided else ""
        counts = f"You were right {self.right} of {self.decided} times{apart}."
        p_value = self.p_value
        if p_value is None:
            return f"You could not tell {undecided} times out of {undecided}."
        likely = "hardly chance" if p_value < CHANCE else "that may well be chance"
        return f"{counts} By guessing, so many or more come with p = {p_value:.3g}: {likely}."

    def as_dict(self) -> dict[str, Any]:
        """The export. Nothing in it tells who the visitor was."""
        return {
            "trials": [trial.as_dict() for trial in self.trials],
            "decided": self.decided,
            "right": self.right,
            "undecided": len(self.trials) - self.decided,
            "p_value": self.p_value,
            "test": "one-sided binomial, p = 1/2, over the trials that were decided",
        }


def binomial_tail(successes: int, trials: int) -> float:
    """P(X >= successes) for X ~ Binomial(trials, 1/2), exactly."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} cannot be")
    ways = sum(math.comb(trials, count) for count in range(successes, trials + 1))
    return ways / 2**trials
