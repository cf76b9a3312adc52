from ui.limits import Allowance, Allowances


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_granted_and_then_so_much_a_second() -> None:
    clock = Clock()
    allowance = Allowance(per_s=2, burst=3, clock=clock)
    assert [allowance.take() for _ in range(3)] == [0, 0, 0]
    assert allowance.take() == 0.5
    clock.now += 0.5
    assert allowance.take() == 0
    assert allowance.take() == 0.5
    clock.now += 60
    assert [allowance.take() for _ in range(4)] == [0, 0, 0, 0.5]


def test_what_is_refused_costs_nothing_and_what_is_given_back_can_be_had_again() -> None:
    clock = Clock()
    allowance = Allowance(per_s=1, burst=2, clock=clock)
    assert allowance.take(5) == 3
    assert allowance.take(2) == 0
    allowance.give_back()
    assert allowance.take() == 0
    allowance.give_back(100)
    assert (allowance.take(2), allowance.take()) == (0, 1)


def test_visitors_do_not_share_and_the_longest_silent_is_forgotten() -> None:
    clock = Clock()
    allowances = Allowances(per_s=1, burst=1, most=2, clock=clock)
    assert allowances.take("a") == 0 and allowances.take("b") == 0
    assert allowances.take("a") == 1
    assert allowances.take("c") == 0  # "b" is forgotten
    assert allowances.take("a") == 1
    assert allowances.take("b") == 0
    allowances.clear()
    assert allowances.take("a") == 0
