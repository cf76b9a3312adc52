"""The blind test's counts and statistics."""

from __future__ import annotations

import itertools

import pytest

from engine.errors import UnpausedError
from tests.ui.test_race import trace
from ui import blind
from ui.blind import BlindTest, Choice, Trial, binomial_tail

FAST, SLOW = trace(2, engine="cpu"), trace(10)


def after(*choices: Choice) -> BlindTest:
    """A test in which B was the faster one every time."""
    test = BlindTest()
    for choice in choices:
        test.begin((SLOW, FAST))
        test.choose(choice)
    return test


def test_the_tail_of_the_binomial_is_exact() -> None:
    assert binomial_tail(0, 0) == 1 and binomial_tail(0, 9) == 1
    assert binomial_tail(5, 5) == 1 / 32
    assert binomial_tail(9, 10) == 11 / 1024
    for trials in range(1, 12):  # against counting every outcome there is
        outcomes = list(itertools.product((0, 1), repeat=trials))
        for right in range(trials + 1):
            share = sum(sum(outcome) >= right for outcome in outcomes) / len(outcomes)
            assert binomial_tail(right, trials) == pytest.approx(share)
    with pytest.raises(ValueError, match="3 of 2"):
        binomial_tail(3, 2)


def test_who_cannot_tell_is_counted_apart() -> None:
    test = after("B", "B", "none", "A", "B", "none")
    assert (len(test.trials), test.decided, test.right) == (6, 4, 3)
    assert test.p_value == binomial_tail(3, 4)
    assert 'right 3 of 4 times and "can\'t tell" 2 times' in test.verdict()


def test_the_verdict_says_whether_chance_would_do() -> None:
    assert BlindTest().verdict() == "No trials yet." and BlindTest().p_value is None
    assert "may well be chance" in after("B", "B", "B", "B").verdict()
    assert "hardly chance" in after("B", "B", "B", "B", "B").verdict()
    assert after("none", "none").verdict() == "You could not tell 2 times out of 2."


def test_a_trial_is_open_from_its_runs_to_one_choice() -> None:
    test = BlindTest()
    with pytest.raises(UnpausedError, match="no trial"):
        test.choose("A")
    test.begin((FAST, SLOW))
    trial = test.choose("A")
    assert trial.right and trial.faster == "A"
    with pytest.raises(UnpausedError, match="no trial"):
        test.choose("A")


def test_trials_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blind, "MAX_TRIALS", 2)
    with pytest.raises(UnpausedError, match="2 trials are enough"):
        after("A", "A").begin((SLOW, FAST))


def test_the_export_has_every_trial_and_nothing_about_who_it_was() -> None:
    exported = after("B", "none").as_dict()
    assert exported["trials"][0] == {
        "question": "Why?",
        "A": {"engine": "eager", "tokens_per_s": pytest.approx(100), "end_ms": 80.0},
        "B": {"engine": "cpu", "tokens_per_s": pytest.approx(500), "end_ms": 56.0},
        "identical_tokens": True,
        "faster": "B",
        "choice": "B",
        "right": True,
    }
    assert (exported["decided"], exported["right"], exported["undecided"]) == (1, 1, 1)
    assert set(exported) == {"trials", "decided", "right", "undecided", "p_value", "test"}
    assert Trial((SLOW, FAST), "none").right is None
