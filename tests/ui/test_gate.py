import threading

import pytest

from engine.errors import UnpausedError
from ui.gate import Gate, QueueFull
from ui.waits import Progress


def test_the_first_comer_holds_the_gate_and_the_others_follow_in_order() -> None:
    gate = Gate()
    first, second, third = gate.enter(), gate.enter(), gate.enter()
    assert [ticket.wait() for ticket in (first, second, third)] == [0, 1, 2]
    first.leave()
    assert (second.wait(1), third.wait(2)) == (0, 1)
    second.leave()
    assert third.wait(1) == 0


def test_whoever_leaves_the_queue_makes_room() -> None:
    gate = Gate()
    first, second, third = gate.enter(), gate.enter(), gate.enter()
    second.cancel()
    assert second.wait() is None
    first.leave()
    assert third.wait(2) == 0


def test_cancelling_does_not_give_up_the_gate_itself() -> None:
    gate = Gate()
    first, second = gate.enter(), gate.enter()
    first.cancel()
    assert (first.wait(), second.wait()) == (0, 1)


def test_a_full_queue_refuses_in_words() -> None:
    gate = Gate(max_waiting=1)
    gate.enter()
    gate.enter()
    with pytest.raises(UnpausedError, match="1 visitors are already waiting"):
        gate.enter()


def test_never_two_at_once() -> None:
    gate = Gate(max_waiting=50)
    inside, most, order = 0, 0, []
    tickets = [gate.enter() for _ in range(20)]

    def work(number: int) -> None:
        nonlocal inside, most
        position: int | None = -1
        while position != 0:
            position = tickets[number].wait(position)
        inside += 1
        most = max(most, inside)
        order.append(number)
        inside -= 1
        tickets[number].leave()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 1
    assert order == list(range(20))


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def turn(gate: Gate, clock: Clock, seconds: float, kind: str = "text") -> None:
    ticket = gate.enter(kind=kind)
    clock.now += seconds
    ticket.leave()


def test_before_the_first_turn_nobody_knows_how_long_one_takes() -> None:
    gate = Gate()
    gate.enter()
    assert gate.enter().expected_s() is None


def test_the_wait_is_what_is_left_of_the_holders_turn_and_those_between() -> None:
    clock = Clock()
    gate = Gate(clock=clock)
    for seconds in (4.0, 6.0, 5.0):
        turn(gate, clock, seconds)
    holder, second, third = gate.enter(kind="text"), gate.enter(kind="text"), gate.enter()
    assert (holder.expected_s(), second.expected_s(), third.expected_s()) == (0.0, 5.0, 10.0)
    clock.now += 3.0
    assert second.expected_s() == 2.0
    clock.now += 2.5  # those that take longer than 5.5 s take 6
    assert second.expected_s() == 0.5
    clock.now += 9.0  # longer than any before
    assert second.expected_s() == 2.5
    holder.leave()
    assert (second.expected_s(), third.expected_s()) == (0.0, 7.375)  # it has learnt from it
    second.leave()
    assert second.expected_s() is None


def test_what_is_known_of_the_holders_reply_shortens_or_lengthens_the_wait() -> None:
    clock = Clock()
    gate = Gate(clock=clock)
    progress = [Progress()]
    for seconds, tokens in ((2.0, 20), (4.0, 40), (12.0, 120)):
        ended = gate.enter(kind="text")
        ended.how_far = lambda tokens=tokens: Progress(tokens)  # type: ignore[misc]
        clock.now += seconds
        ended.leave()
    holder, second = gate.enter(kind="text"), gate.enter(kind="text")
    holder.how_far = lambda: progress[0]
    assert second.expected_s() == 6.0
    clock.now += 1.0
    progress[0] = Progress(30)  # so it is one of the longer ones, which took 4 and 12 s
    assert second.expected_s() == 7.0
    for _ in range(2):
        clock.now += 1.0
        holder.voiced(50)
    progress[0] = Progress(60, characters=300)  # the end is known now: 200 at 50 a second
    assert second.expected_s() == pytest.approx(4.0)
    clock.now += 0.5
    assert second.expected_s() == pytest.approx(3.5)
    holder.voiced(200)
    assert second.expected_s() == 0.0


def test_a_visitors_own_turns_say_most_about_its_next() -> None:
    clock = Clock()
    gate = Gate(clock=clock)
    for visitor, seconds in (("brief", 1.0), ("wordy", 9.0), ("wordy", 9.0), ("brief", 1.0)):
        ended = gate.enter(visitor, "text")
        clock.now += seconds
        ended.leave()
    gate.enter("brief", "text")
    second = gate.enter("wordy", "text")
    last = gate.enter("stranger", "text")
    assert second.expected_s() == pytest.approx((1 + 1 + 0.5 * 9) / 2.5)
    between = (9 + 9 + 0.5 * 1) / 2.5
    assert last.expected_s() == pytest.approx((1 + 1 + 0.5 * 9) / 2.5 + between)


def test_kinds_of_turns_are_told_apart_once_there_are_some() -> None:
    clock = Clock()
    gate = Gate(clock=clock)
    for seconds, kind in ((2.0, "text"), (2.0, "text"), (2.0, "text"), (10.0, "voice")):
        turn(gate, clock, seconds, kind)
    gate.enter(kind="text")
    waiting = gate.enter(kind="voice")
    assert waiting.expected_s() == 2.0
    assert gate.enter(kind="text").expected_s() == 2.0 + 4.0  # one voice turn says too little


def test_a_holder_gives_way_only_to_others_and_only_when_its_time_is_up() -> None:
    clock = Clock()
    gate = Gate(turn_limit_s=60, clock=clock)
    asked: list[str] = []
    holder = gate.enter("a")
    holder.give_way = lambda: asked.append("a")
    clock.now = 1000.0  # alone, it may take its time
    second = gate.enter("b")
    second.give_way = lambda: asked.append("b")
    assert second.wait(1, timeout_s=0) == 1
    assert asked == ["a"]
    assert second.wait(1, timeout_s=0) == 1
    assert asked == ["a"]  # once is enough
    holder.leave()
    third = gate.enter("c")
    clock.now += 59
    third.wait(1, timeout_s=0)
    assert asked == ["a"]
    clock.now += 1
    third.wait(1, timeout_s=0)
    assert asked == ["a", "b"]


def test_who_gives_way_may_wait_for_others_that_look_at_the_gate() -> None:
    """As a session does, whose locks an interruption may hold that is about to leave the queue."""
    clock = Clock()
    gate = Gate(turn_limit_s=60, clock=clock)
    holder, second = gate.enter("a"), gate.enter("b")
    looked: list[float | None] = []

    def give_way() -> None:
        other = threading.Thread(target=lambda: looked.append(second.expected_s()))
        other.start()
        other.join(20)

    holder.give_way = give_way
    clock.now = 61.0
    assert second.wait(1, timeout_s=0) == 1
    assert looked == [None]  # no turn has ended yet


def test_one_visitor_cannot_fill_the_queue() -> None:
    gate = Gate(max_of_one=2)
    first, _ = gate.enter("a"), gate.enter("a")
    with pytest.raises(QueueFull, match="2 turns in the queue already") as full:
        gate.enter("a")
    assert full.value.retry_s > 0
    gate.enter("b")
    first.leave()
    gate.enter("a")


def test_who_leaves_is_told_how_long_it_waited_and_held() -> None:
    clock = Clock()
    told: list[tuple[float, float]] = []
    gate = Gate(clock=clock, observe=lambda *times: told.append(times))
    first, second, third = gate.enter(), gate.enter(), gate.enter()
    clock.now = 4.0
    third.leave()  # it never held
    first.leave()
    clock.now = 10.0
    second.leave()
    second.leave()
    assert told == [(0.0, 4.0), (4.0, 6.0)]
    assert gate.length == 0
