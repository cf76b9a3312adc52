"""Turns, medians and shares, with sides that are scripted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import timing
from benchmarks.timing import Reply, SideFailed, figures, first_tokens, in_turn
from engine.errors import UnpausedError
from engine.sampling import SamplingParams


class Scripted:
    """A side whose replies take `itl_ms` a token; writes down every call."""

    def __init__(self, name: str, calls: list[str], itl_ms: float = 2.0) -> None:
        self.name, self.calls, self.itl_ms = name, calls, itl_ms

    def first_token_ms(self) -> float:
        self.calls.append(f"{self.name} first")
        return 10.0

    def reply(self, params: SamplingParams) -> Reply:
        self.calls.append(f"{self.name} {params.max_tokens}")
        tokens = list(range(params.max_tokens))
        return Reply(tokens, np.full(len(tokens) - 1, self.itl_ms), 3.0)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_COOL_DOWN_S", 0.0)


def test_sides_warm_up_apart_and_take_turns() -> None:
    calls: list[str] = []
    sides = [Scripted("a", calls), Scripted("b", calls)]
    replies = in_turn(sides, SamplingParams(max_tokens=50), 2)
    assert calls == ["a 50", "b 50"] * 3
    assert [len(replies[name]) for name in ("a", "b")] == [2, 2]


def test_the_first_first_token_is_not_counted() -> None:
    calls: list[str] = []
    assert first_tokens([Scripted("a", calls)], 2) == {"a": [10.0, 10.0]}
    assert len(calls) == 3


def test_a_failure_names_its_side() -> None:
    class Broken(Scripted):
        def reply(self, params: SamplingParams) -> Reply:
            raise UnpausedError("no")

    with pytest.raises(SideFailed) as failure:
        in_turn([Scripted("a", []), Broken("b", [])], SamplingParams(max_tokens=4), 1)
    assert failure.value.side == "b" and str(failure.value.error) == "no"


def test_figures_are_medians_over_rounds_and_shares_of_the_ceiling() -> None:
    rounds = [Reply([0] * 5, np.full(4, itl), 152.0) for itl in (2.0, 4.0, 3.0)]
    found = figures(rounds, [9.0, 7.0, 8.0], read_bytes=1.5e6, ceiling=1e9)  # a floor of 1.5 ms
    assert found["tpot_p50_ms"] == 3.0 and found["tpot_p50_of_rounds_ms"] == [2.0, 4.0, 3.0]
    assert found["tpot_p99_ms"] == 4.0 and found["ttft_ms"] == 8.0
    assert found["tokens_per_s"] == pytest.approx(1e3 / 3, abs=0.01)
    assert found["floor_ms"] == 1.5 and found["launches_per_token"] == 152.0
    assert found["share_of_ceiling"] == {"p50": 0.5, "p99": 0.375, "tokens_per_s": 0.5}


def test_without_known_bytes_there_is_no_share() -> None:
    found = figures([Reply([0, 1], np.array([2.0]), None)], [1.0], None, 1e9)
    assert "share_of_ceiling" not in found and found["launches_per_token"] is None
